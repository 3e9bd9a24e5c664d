//! Tests with memory that the library has not allocated: on the CPU, and on a GPU if there is one.

use super::conformance::devices;
use super::devices::gpu;
use super::{Oracle, x_vector};
use crate::device::DeviceArray;
use crate::device::{Device, DeviceView, ForeignCsr, Offsets};
use crate::formats::FormatKind;
use crate::matrix::{CsrMatrix, gallery};
use crate::{DeviceVec, Precision, Scalar, SparseOp, SparseOpBuilder, Stream, Tuning};

/// Arrays of a matrix in the memory of a device, as another library provides them.
pub(super) struct Arrays {
    row_ptr: DeviceArray,
    narrow: DeviceArray,
    col_idx: DeviceArray,
    values: DeviceArray,
}

impl Arrays {
    pub(super) fn of<T: Scalar>(device: &Device, a: &CsrMatrix<T>) -> Self {
        let narrow: Vec<i32> = a.row_ptr().iter().map(|&offset| offset as i32).collect();
        let col_idx: Vec<i32> = a.col_idx().iter().map(|&col| col as i32).collect();
        Self {
            row_ptr: DeviceArray::from_slice(device, a.row_ptr()).unwrap(),
            narrow: DeviceArray::from_slice(device, &narrow).unwrap(),
            col_idx: DeviceArray::from_slice(device, &col_idx).unwrap(),
            values: DeviceArray::from_slice(device, a.values()).unwrap(),
        }
    }

    /// Builds an operator from the arrays.
    pub(super) fn build<T: Scalar>(
        &self,
        builder: &SparseOpBuilder,
        stream: &Stream,
        a: &CsrMatrix<T>,
        wide: bool,
    ) -> SparseOp<T> {
        let offsets = match wide {
            true => Offsets::Bits64(self.row_ptr.address()),
            false => Offsets::Bits32(self.narrow.address()),
        };
        let (col_idx, values) = (self.col_idx.address(), self.values.address());
        let shape = (a.nrows(), a.ncols());
        // SAFETY: the arrays are those of the matrix, and live until the operator is built.
        let foreign = unsafe {
            ForeignCsr::<T>::from_raw(&stream.device(), shape, a.nnz(), offsets, col_idx, values)
        };
        builder.build_from_device(stream, &foreign.unwrap()).unwrap()
    }
}

/// Checks products of operators built from arrays on the device, with vectors that the library has
/// not allocated.
fn from_arrays<T: Scalar>(device: &Device, spec: &str) {
    let a = spec.parse::<gallery::Spec>().unwrap().generate::<T>().unwrap();
    let arrays = Arrays::of(device, &a);
    let stream = Stream::new(device).unwrap();
    let host_x = x_vector::<T>(a.ncols());
    let oracle = Oracle::of(a.view(), &host_x);
    let (x, y) =
        (DeviceArray::from_slice(device, &host_x).unwrap(), vec![T::from_f64(f64::NAN); a.nrows()]);
    let y = DeviceArray::from_slice(device, &y).unwrap();
    let plans = ["csr", "jds", "psell(sigma:512,group:4)", "psell(sigma:1,values:packed,group:4)"];
    let fixed = plans.iter().map(|plan| Tuning::Fixed(plan.parse().unwrap()));
    for (i, tuning) in [Tuning::Predict].into_iter().chain(fixed).enumerate() {
        let op = arrays.build(&SparseOpBuilder::new().tuning(tuning), &stream, &a, i % 2 == 0);
        assert_eq!(
            (op.device(), op.to_csr().unwrap()),
            (device, a.clone()),
            "{} on {spec}",
            op.plan()
        );
        // SAFETY: both live until the end, and only the product uses them.
        let (view, mut on) = unsafe {
            let view = DeviceView::<T>::from_raw(device, x.address(), a.ncols()).unwrap();
            (view, DeviceVec::<T>::from_raw(device, y.address(), a.nrows()).unwrap())
        };
        op.apply_device(&stream, &view, &mut on).unwrap();
        oracle
            .check(&on.to_vec().unwrap())
            .unwrap_or_else(|wrong| panic!("{} on {spec}: {wrong}", op.plan()));
        on.copy_from(&vec![T::from_f64(f64::NAN); a.nrows()]).unwrap();
    }
}

#[test]
fn operators_from_arrays_on_every_device() {
    for device in devices() {
        for spec in ["poisson2d,n=60", "webbase,rows=30k", "fem3d,n=9"] {
            from_arrays::<f32>(device, spec);
            from_arrays::<f64>(device, spec);
        }
    }
}

#[test]
fn arrays_of_a_gpu_are_packed_where_they_lie() {
    let Some(device) = gpu() else { return };
    let a = "poisson3d,n=40".parse::<gallery::Spec>().unwrap().generate::<f64>().unwrap();
    let (arrays, stream) = (Arrays::of(device, &a), Stream::new(device).unwrap());
    let tuning = Tuning::Fixed("psell(sigma:512,group:4)".parse().unwrap());
    let builder = SparseOpBuilder::new().tuning(tuning);
    for wide in [false, true] {
        let op = arrays.build(&builder, &stream, &a, wide);
        assert_eq!(op.preparation().upload, 0.0, "nothing is copied there");
        assert_eq!(op.to_csr().unwrap(), a);
        let copied = builder.clone().device(device.clone()).build(&a).unwrap();
        assert_eq!(op.memory_bytes(), copied.memory_bytes());
    }
}

/// Packing is over when the operator is there: a product on another stream may begin at once.
#[test]
fn products_begin_with_complete_arrays() {
    let Some(device) = gpu() else { return };
    let a = "rmat,scale=18".parse::<gallery::Spec>().unwrap().generate::<f32>().unwrap();
    let (arrays, stream) = (Arrays::of(device, &a), Stream::new(device).unwrap());
    let host_x = x_vector::<f32>(a.ncols());
    let oracle = Oracle::of(a.view(), &host_x);
    let x = DeviceVec::from_slice(device, &host_x).unwrap();
    for plan in ["csr(balanced)", "sell", "jds", "psell", "tiles", "blocked", "blocked(hot:192)"] {
        let builder = SparseOpBuilder::new().tuning(Tuning::Fixed(plan.parse().unwrap()));
        let mut y = DeviceVec::zeros(device, a.nrows()).unwrap();
        let other = Stream::new(device).unwrap();
        let op = arrays.build(&builder, &stream, &a, true);
        op.apply_device(&other, &x, &mut y).unwrap();
        other.synchronize().unwrap();
        oracle.check(&y.to_vec().unwrap()).unwrap_or_else(|wrong| panic!("{plan}: {wrong}"));
    }
}

/// Arrays that begin anywhere, as columns do behind row offsets in one allocation.
#[test]
fn arrays_of_any_alignment_are_read() {
    let Some(device) = gpu() else { return };
    let a = "webbase,rows=30k".parse::<gallery::Spec>().unwrap().generate::<f32>().unwrap();
    let (x, stream) = (x_vector(a.ncols()), Stream::new(device).unwrap());
    let oracle = Oracle::of(a.view(), &x);
    let cols = DeviceArray::from_slice(device, &[&[0], a.col_idx()].concat()).unwrap();
    let values = DeviceArray::from_slice(device, &[&[0.0; 3], a.values()].concat()).unwrap();
    let row_ptr = DeviceArray::from_slice(device, a.row_ptr()).unwrap();
    let offsets = Offsets::Bits64(row_ptr.address());
    let (cols, values) = (cols.address() + 4, values.address() + 12);
    let shape = (a.nrows(), a.ncols());
    // SAFETY: the arrays are those of the matrix, and live until the end.
    let foreign = unsafe {
        ForeignCsr::<f32>::from_raw(&stream.device(), shape, a.nnz(), offsets, cols, values)
    };
    let foreign = foreign.unwrap();
    let fixed = ["csr(balanced)", "csr(vector:8)", "psell"];
    let fixed = fixed.map(|plan| Tuning::Fixed(plan.parse().unwrap()));
    for tuning in fixed.into_iter().chain([Tuning::Check]) {
        let builder = SparseOpBuilder::new().tuning(tuning.clone()).remember(false);
        let op = builder.build_from_device(&stream, &foreign).unwrap();
        let mut y = vec![0.0; a.nrows()];
        op.apply(&x, &mut y).unwrap();
        oracle.check(&y).unwrap_or_else(|wrong| panic!("{tuning:?}, {}: {wrong}", op.plan()));
    }
}

/// An operator has copies of the arrays, whatever a check or a timing run has shared.
#[test]
fn arrays_may_change_once_the_operator_is_built() {
    let Some(device) = gpu() else { return };
    let a = "webbase,rows=30k".parse::<gallery::Spec>().unwrap().generate::<f32>().unwrap();
    let (x, stream) = (x_vector(a.ncols()), Stream::new(device).unwrap());
    let oracle = Oracle::of(a.view(), &x);
    let fixed = ["csr(balanced)", "csr(vector:8)"].map(|plan| Tuning::Fixed(plan.parse().unwrap()));
    for tuning in fixed.into_iter().chain([Tuning::Predict, Tuning::Check, Tuning::Calibrate]) {
        let arrays = Arrays::of(device, &a);
        let builder = SparseOpBuilder::new().tuning(tuning.clone()).remember(false);
        let op = arrays.build(&builder, &stream, &a, true);
        // A timing run may choose another format.
        let is_csr = op.plan().format() == FormatKind::Csr;
        assert!(is_csr || matches!(tuning, Tuning::Calibrate), "{tuning:?}: {}", op.plan());
        for array in [&arrays.col_idx, &arrays.values] {
            // SAFETY: as many elements of four bytes, which only this copy uses.
            let mut array =
                unsafe { DeviceVec::<f32>::from_raw(device, array.address(), a.nnz()).unwrap() };
            array.copy_from(&vec![f32::NAN; a.nnz()]).unwrap();
        }
        let mut y = vec![0.0; a.nrows()];
        op.apply(&x, &mut y).unwrap();
        oracle.check(&y).unwrap_or_else(|wrong| panic!("{tuning:?}, {}: {wrong}", op.plan()));
    }
}

/// Only samples come to the host for plans that a GPU packs.
#[cfg(feature = "cuda")]
#[test]
fn columns_and_values_of_a_gpu_stay_there() {
    use crate::device::copied_bytes;
    let Some(device) = gpu() else { return };
    for spec in ["poisson3d,n=90", "rmat,scale=18"] {
        let a = spec.parse::<gallery::Spec>().unwrap().generate::<f32>().unwrap();
        let (arrays, stream) = (Arrays::of(device, &a), Stream::new(device).unwrap());
        let rows = ["sell(c:32,sigma:512)", "jds", "jds(diagonals,tail:8)"];
        let fixed = ["csr(balanced)", "csr(vector:8)", "psell(sigma:1,group:4)"].into_iter();
        let fixed = fixed.chain(rows).map(|plan| Tuning::Fixed(plan.parse().unwrap()));
        for tuning in fixed.into_iter().chain([Tuning::Predict, Tuning::Check]) {
            let builder = SparseOpBuilder::new().tuning(tuning.clone());
            let before = copied_bytes();
            let op = arrays.build(&builder, &stream, &a, false);
            let copied = copied_bytes() - before;
            eprintln!("{spec}, {tuning:?}, {}: {} kB come back", op.plan(), copied / 1000);
            // Where products are slow, a check may have packed other plans on the host.
            let run = op.decision().timing_run().into_iter();
            let timed = run.flat_map(|run| &run.timed_plans).map(|timed| &timed.plan);
            if timed.chain([op.plan()]).all(|plan| plan.properties().packs_on_device) {
                let columns = size_of_val(a.col_idx()) as u64;
                assert!(copied < columns / 3, "{spec}, {tuning:?}: {copied} of {columns} bytes");
            }
        }
    }
}

/// Arrays that are no matrix are refused with the error of the host.
#[test]
fn arrays_that_are_no_matrix_are_refused_alike() {
    let Some(device) = gpu() else { return };
    let a = "poisson2d,n=200".parse::<gallery::Spec>().unwrap().generate::<f64>().unwrap();
    let (nrows, nnz) = (a.nrows(), a.nnz());
    let stream = Stream::new(device).unwrap();
    type Change = fn(&mut [usize], &mut [u32]);
    let changes: [Change; 6] = [
        |rows, _| rows[0] = 1,
        |rows, _| rows[777] = rows[778] + 1,
        |rows, _| *rows.last_mut().unwrap() += 1,
        |rows, _| *rows.last_mut().unwrap() -= 1,
        |_, cols| cols[4321] = 40_000,
        |_, cols| *cols.last_mut().unwrap() = u32::MAX,
    ];
    for change in changes {
        let (mut row_ptr, mut col_idx) = (a.row_ptr().to_vec(), a.col_idx().to_vec());
        change(&mut row_ptr, &mut col_idx);
        let narrow: Vec<u32> = row_ptr.iter().map(|&offset| offset as u32).collect();
        let expected =
            CsrMatrix::try_new(nrows, nrows, row_ptr.clone(), col_idx.clone(), a.values().to_vec())
                .unwrap_err();
        let wide = DeviceArray::from_slice(device, &row_ptr).unwrap();
        let narrow = DeviceArray::from_slice(device, &narrow).unwrap();
        let col_idx = DeviceArray::from_slice(device, &col_idx).unwrap();
        let values = DeviceArray::from_slice(device, a.values()).unwrap();
        for offsets in [Offsets::Bits64(wide.address()), Offsets::Bits32(narrow.address())] {
            let (cols, values) = (col_idx.address(), values.address());
            // SAFETY: the arrays have these lengths, and live until the operator is refused.
            let foreign = unsafe {
                ForeignCsr::<f64>::from_raw(device, (nrows, nrows), nnz, offsets, cols, values)
            };
            let refused =
                SparseOpBuilder::new().build_from_device(&stream, &foreign.unwrap()).unwrap_err();
            assert_eq!(refused.to_string(), expected.to_string());
        }
    }
}

#[test]
fn unsupported_gpu_operations_are_refused() {
    let Some(device) = gpu() else { return };
    let refused = |address: u64, len: usize| {
        // SAFETY: it is refused before anything is read.
        unsafe { DeviceVec::<f64>::from_raw(device, address, len) }.unwrap_err().to_string()
    };
    let host = [1.0f64; 4];
    assert!(refused(host.as_ptr() as u64, 4).contains("the driver does not know it"));
    assert!(refused(0, 1).contains("null"));
    let there = DeviceVec::from_slice(device, &[1.0f64; 1000]).unwrap();
    assert!(refused(there.address() + 4, 1).contains("no multiple of 8"));
    let message = refused(there.address(), 1 << 24);
    assert!(message.contains("too short"), "{message}");
    let Device::Cuda(gpu) = device else { return };
    let pinned = gpu.pinned::<f64>(4).unwrap();
    let message = refused(pinned.as_slice().as_ptr() as u64, 4);
    assert!(message.contains("memory of the host"), "{message}");
    // SAFETY: a part of the vector, which lives until the end.
    let part = unsafe { DeviceVec::<f64>::from_raw(device, there.address() + 800, 900) }.unwrap();
    assert_eq!(part.to_vec().unwrap(), [1.0; 900]);
    drop(part);
    assert_eq!(there.to_vec().unwrap(), [1.0; 1000], "it was not freed");
}

#[test]
fn an_operator_is_for_the_device_of_the_arrays() {
    let a = super::chapter::matrix::<f32>();
    let arrays = Arrays::of(&Device::Cpu, &a);
    let stream = Stream::new(&Device::Cpu).unwrap();
    let op = arrays.build(&SparseOpBuilder::new(), &stream, &a, true);
    assert_eq!((op.device(), op.decision().fallback.as_deref()), (&Device::Cpu, None));
    let Some(gpu) = gpu() else { return };
    let offsets = Offsets::Bits64(arrays.row_ptr.address());
    let (col_idx, values) = (arrays.col_idx.address(), arrays.values.address());
    // SAFETY: the arrays are those of the matrix.
    let foreign = unsafe {
        ForeignCsr::<f32>::from_raw(&Device::Cpu, (4, 4), a.nnz(), offsets, col_idx, values)
    }
    .unwrap();
    let builder = SparseOpBuilder::new().device(gpu.clone());
    let refused = builder.build_from_device(&stream, &foreign).unwrap_err().to_string();
    assert!(refused.contains("`matrix` is on cpu"), "{refused}");
    let refused =
        SparseOpBuilder::new().build_from_device(&Stream::new(gpu).unwrap(), &foreign).unwrap_err();
    assert!(refused.to_string().contains("`stream`"), "{refused}");
}

#[test]
fn values_are_rounded_wherever_they_lie() {
    let mut a = "stencil27,n=14".parse::<gallery::Spec>().unwrap().generate::<f32>().unwrap();
    a.values_mut().iter_mut().enumerate().for_each(|(k, value)| *value = (k as f32).sin());
    let rounded = a.rounded_to(Precision::F16).unwrap().into_owned();
    for device in devices() {
        let (arrays, stream) = (Arrays::of(device, &a), Stream::new(device).unwrap());
        for plan in ["psell", "psell(values:f16)", "csr"] {
            let fixed = Tuning::Fixed(plan.parse().unwrap());
            let builder = SparseOpBuilder::new().device(device.clone()).tuning(fixed);
            let op = arrays.build(&builder.value_precision(Precision::F16), &stream, &a, true);
            assert_eq!(op.to_csr().unwrap(), rounded, "{plan} on {device}");
        }
    }
}
