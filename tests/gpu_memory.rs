//! A GPU with little free memory: `auto` takes a plan that fits it, or the CPU, and says so.
//! A process of its own, since it fills the memory of the GPU. Needs a GPU.

use sparseop::matrix::{CsrMatrix, gallery};
use sparseop::{Device, DeviceVec, ErrorKind, SparseOp, SparseOpBuilder};
use sparseop_testkit::gpu;

const MIB: u64 = 1 << 20;

/// Takes memory of the GPU until about `left` bytes are free.
fn fill(gpu: &Device, left: u64) -> Vec<DeviceVec<f64>> {
    let mut taken = Vec::new();
    loop {
        let free = gpu.memory().unwrap();
        if free < left + 2 * MIB {
            return taken;
        }
        let bytes = (free - left).min(1 << 33);
        taken.push(DeviceVec::zeros(gpu, (bytes / 8) as usize).unwrap());
    }
}

#[test]
fn auto_takes_a_plan_that_fits_or_the_cpu_and_says_so() {
    let Some(gpu) = gpu() else { return };
    let spec: gallery::Spec = "fem3d,n=40".parse().unwrap();
    let a: CsrMatrix<f64> = spec.generate().unwrap();
    let x = vec![1.0; a.ncols()];
    let mut expected = vec![0.0; a.nrows()];
    let cpu = SparseOpBuilder::new().device(Device::Cpu).build(&a).unwrap();
    cpu.apply(&x, &mut expected).unwrap();
    // Loads the kernels.
    let all = SparseOp::auto(&a).unwrap();
    all.apply(&x, &mut vec![0.0; a.nrows()]).unwrap();
    let plenty = all.decision().fallback.is_none() && all.device() == gpu;
    assert!(plenty, "{}", all.explain());
    drop(all);

    let csr = (a.nnz() * 12) as u64;
    let (mut smaller, mut on_cpu) = (0, 0);
    for percent in [400, 200, 150, 120, 100, 90, 80, 76, 73, 71, 69, 68, 60, 40, 5] {
        let left = csr * percent / 100;
        let taken = fill(gpu, left);
        // Freed before the next operator, so that both find the same memory.
        let requested = SparseOpBuilder::new().device(gpu.clone()).build(&a);
        let requested = requested.map(|op| op.device().clone());
        let op = SparseOp::auto(&a).unwrap();
        drop(taken);
        let mut y = vec![0.0; a.nrows()];
        op.apply(&x, &mut y).unwrap();
        let near = y.iter().zip(&expected).all(|(y, e)| (y - e).abs() <= 1e-9 * e.abs().max(1.0));
        assert!(near, "{percent} %: {}", op.plan());
        let fallback = op.decision().fallback.as_deref();
        println!("{percent} % of CSR: {} on {}, {fallback:?}", op.plan(), op.device());
        if *op.device() == Device::Cpu {
            on_cpu += 1;
            assert!(fallback.is_some_and(|reason| reason.starts_with("on the CPU: ")));
            assert!(op.explain().to_string().contains("device   on the CPU: "));
        } else {
            smaller += usize::from(fallback.is_some());
        }
        match requested {
            Ok(device) => assert_eq!(device, *gpu),
            Err(error) => {
                assert_eq!(*op.device(), Device::Cpu, "{percent} %: a plan fits: {error}");
                assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
                assert!(!error.to_string().contains("auto"), "{error}");
            }
        }
    }
    println!("{smaller} smaller plans, {on_cpu} on the CPU");
    assert!(on_cpu > 0);
}
