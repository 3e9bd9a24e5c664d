use super::*;
use crate::testing::{devices, x_vector};
use rayon::ThreadPoolBuilder;

const LENGTHS: [usize; 8] = [0, 1, 3, 255, 4097, 16_384, 100_003, 1_000_001];

/// Numbers that differ from those of `x_vector(len)`.
fn other<T: Scalar>(len: usize, shift: usize) -> Vec<T> {
    let mut v = x_vector::<T>(len);
    v.rotate_left(shift.min(len));
    v
}

fn near(found: f64, expected: f64, scale: f64) -> bool {
    (found - expected).abs() <= 1e-12 * (1.0 + scale)
}

fn check_dots<T: Scalar>(device: &Device) {
    let stream = Stream::new(device).unwrap();
    let mut code = Code::new();
    let program = code.add(&[Instruction::Add(10, 8, 9)]);
    let mut passes = Passes::<T>::new(&stream, 64, code).unwrap();
    for len in LENGTHS {
        let [a, b, c] = [0, 1, 2].map(|shift| other::<T>(len, shift));
        let exact =
            |a: &[T], b: &[T]| a.iter().zip(b).map(|(a, b)| a.to_f64() * b.to_f64()).sum::<f64>();
        let [va, vb, vc] = [&a, &b, &c].map(|v| DeviceVec::from_slice(device, v).unwrap());
        for backward in [false, true] {
            passes
                .dots(Dots {
                    of: &va,
                    with: Some(&vb),
                    and: Some(&vc),
                    at: 8,
                    then: program,
                    backward,
                })
                .unwrap();
            let r = passes.read().unwrap();
            let scale = len as f64;
            assert!(
                near(r[8], exact(&a, &b), scale) && near(r[9], exact(&a, &c), scale),
                "{len} on {device}"
            );
            assert_eq!(r[10], r[8] + r[9]);
            passes
                .dots(Dots {
                    of: &va,
                    with: None,
                    and: None,
                    at: 12,
                    then: Program::default(),
                    backward,
                })
                .unwrap();
            let sum = a.iter().map(|a| a.to_f64()).sum();
            assert!(near(passes.read().unwrap()[12], sum, scale), "{len} on {device}");
        }
    }
}

fn check_combine<T: Scalar>(device: &Device) {
    let stream = Stream::new(device).unwrap();
    let mut passes = Passes::<T>::new(&stream, 64, Code::new()).unwrap();
    let mut registers = passes.read().unwrap();
    registers[20..23].copy_from_slice(&[0.5, 2.0, -0.25]);
    passes.write(&registers).unwrap();
    let (keep, add, and) = (Coefficient::plus(20), Coefficient::minus(21), Coefficient::plus(22));
    for len in LENGTHS {
        let [y, u, v, d, w] = [0, 1, 2, 3, 4].map(|shift| other::<T>(len, shift));
        let [vu, vv, vd, vw] = [&u, &v, &d, &w].map(|v| DeviceVec::from_slice(device, v).unwrap());
        for case in 0..32 {
            let (keeps, adds, ands, scaled, backward) =
                (case & 1 != 0, case & 2 != 0, case & 4 != 0, case & 8 != 0, case & 16 != 0);
            let mut vy = DeviceVec::from_slice(device, &y).unwrap();
            let pass = Combine {
                keep: keeps.then_some(keep),
                add: adds.then_some((add, &vu)),
                and: ands.then_some((and, &vv)),
                diagonal: Some(&vd),
                scaled,
                with: Some(&vw),
                sums: if backward {
                    [Partner::Change, Partner::Scaled]
                } else {
                    [Partner::Itself, Partner::Other]
                },
                at: 8,
                backward,
                ..Combine::new()
            };
            passes.combine(&mut vy, pass).unwrap();
            let (found, r) = (vy.to_vec().unwrap(), passes.read().unwrap());
            let mut sums = [0.0; 2];
            for i in 0..len {
                let [y, u, v, d, w] = [&y, &u, &v, &d, &w].map(|vector| vector[i].to_f64());
                let u = if scaled { u * d } else { u };
                let parts = [(keeps, 0.5 * y), (adds, -2.0 * u), (ands, -0.25 * v)];
                let expected: f64 =
                    parts.into_iter().map(|(there, part)| if there { part } else { 0.0 }).sum();
                let out = found[i].to_f64();
                assert!(
                    (out - expected).abs() <= 8.0 * T::EPSILON * 8.0,
                    "element {i} of {len}, case {case} on {device}"
                );
                let terms =
                    if backward { [(out - y).abs(), d * out * out] } else { [out * out, out * w] };
                sums = [sums[0] + terms[0], sums[1] + terms[1]];
            }
            assert!(
                near(r[8], sums[0], 30.0 * len as f64) && near(r[9], sums[1], 30.0 * len as f64),
                "{len}, case {case} on {device}"
            );
        }
    }
}

fn check_step<T: Scalar>(device: &Device) {
    let stream = Stream::new(device).unwrap();
    let mut passes = Passes::<T>::new(&stream, 64, Code::new()).unwrap();
    let mut registers = passes.read().unwrap();
    registers[20..23].copy_from_slice(&[0.5, 2.0, -0.25]);
    passes.write(&registers).unwrap();
    for len in LENGTHS {
        let [x, p, r, d] = [0, 1, 2, 3].map(|shift| other::<T>(len, shift));
        let [vr, vd] = [&r, &d].map(|v| DeviceVec::from_slice(device, v).unwrap());
        for scaled in [false, true] {
            let [mut vx, mut vp] = [&x, &p].map(|v| DeviceVec::from_slice(device, v).unwrap());
            let [along, with, keep] = [20, 21, 22].map(Coefficient::plus);
            let pass = Step {
                along,
                with,
                r: &vr,
                diagonal: scaled.then_some(&vd),
                keep,
                backward: scaled,
            };
            passes.step(&mut vx, &mut vp, pass).unwrap();
            let (got_x, got_p) = (vx.to_vec().unwrap(), vp.to_vec().unwrap());
            for i in 0..len {
                let [x, p, r, d] = [&x, &p, &r, &d].map(|vector| vector[i].to_f64());
                let z = if scaled { d * r } else { r };
                let errors =
                    [got_x[i].to_f64() - (x + 0.5 * p), got_p[i].to_f64() - (2.0 * z - 0.25 * p)];
                assert!(
                    errors.iter().all(|e| e.abs() <= 64.0 * T::EPSILON),
                    "element {i} of {len} on {device}"
                );
            }
        }
    }
}

/// Sums of two parts, of which the other has ten times the sums of this one.
#[derive(Debug)]
struct TwoParts;

impl SharedSums for TwoParts {
    fn block(&self) -> usize {
        4
    }

    fn total(&self, blocks: &[[f64; 2]]) -> Result<[f64; 2], Error> {
        // Blocks of four ones, and a last one of two.
        let own: Vec<f64> = blocks.iter().map(|block| block[0]).collect();
        assert_eq!(own, [4.0, 4.0, 2.0]);
        match blocks[0][1] {
            0.0 => Err(Error::Communication { message: "no second sum".to_owned() }),
            second => Ok([11.0 * own.iter().sum::<f64>(), second]),
        }
    }
}

#[test]
fn sums_of_blocks_are_shared_on_the_cpu() {
    let stream = Stream::new(&Device::Cpu).unwrap();
    let mut passes = Passes::<f64>::new(&stream, 16, Code::new()).unwrap();
    passes.share_sums(Arc::new(TwoParts)).unwrap();
    let ones = DeviceVec::from_slice(&Device::Cpu, &[1.0; 10]).unwrap();
    let twos = DeviceVec::from_slice(&Device::Cpu, &[2.0; 10]).unwrap();
    let dots = Dots {
        of: &ones,
        with: Some(&ones),
        and: Some(&twos),
        at: 8,
        then: Program::default(),
        backward: false,
    };
    passes.dots(dots).unwrap();
    assert_eq!(passes.read().unwrap()[8..10], [110.0, 8.0]);
    let failed = passes.dots(Dots { and: None, ..dots }).unwrap_err();
    assert!(failed.to_string().ends_with("no second sum"), "{failed}");
    // A pass without sums shares none.
    let mut y = DeviceVec::zeros(&Device::Cpu, 10).unwrap();
    let add = Some((Coefficient::ONE, &twos));
    passes.combine(&mut y, Combine { add, ..Combine::new() }).unwrap();
    assert_eq!(y.to_vec().unwrap(), [2.0; 10]);
}

#[test]
fn passes_are_right_on_every_device() {
    for device in devices() {
        check_dots::<f32>(device);
        check_dots::<f64>(device);
        check_combine::<f32>(device);
        check_combine::<f64>(device);
        check_step::<f32>(device);
        check_step::<f64>(device);
    }
}

#[test]
fn sums_repeat_their_bits_on_any_number_of_threads_and_at_every_call() {
    for device in devices() {
        let [a, b] = [0, 1]
            .map(|shift| DeviceVec::from_slice(device, &other::<f64>(1_000_001, shift)).unwrap());
        let once = || {
            let stream = Stream::new(device).unwrap();
            let mut passes = Passes::new(&stream, 64, Code::new()).unwrap();
            passes
                .dots(Dots {
                    of: &a,
                    with: Some(&b),
                    and: Some(&a),
                    at: 8,
                    then: Program::default(),
                    backward: false,
                })
                .unwrap();
            passes.read().unwrap()[8..10].to_vec()
        };
        let first = once();
        assert!((0..50).all(|_| once() == first));
        for threads in [1, 2, 3, 7] {
            let pool = ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            assert_eq!(pool.install(once), first, "{threads} threads on {device}");
        }
    }
}

#[test]
fn a_status_stops_every_pass_that_is_guarded() {
    for device in devices() {
        let stream = Stream::new(device).unwrap();
        let mut code = Code::new();
        let stop = code.add(&[Instruction::StopAtMost(5, ONE, 8)]);
        let mut passes = Passes::<f32>::new(&stream, 64, code).unwrap();
        let v = DeviceVec::from_slice(device, &[1.0f32, 2.0]).unwrap();
        let (mut x, mut y) =
            (DeviceVec::zeros(device, 2).unwrap(), DeviceVec::zeros(device, 2).unwrap());
        let add = Combine {
            keep: Some(Coefficient::ONE),
            add: Some((Coefficient::ONE, &v)),
            ..Combine::new()
        };
        passes.combine(&mut y, add).unwrap();
        passes
            .dots(Dots { of: &v, with: None, and: None, at: 8, then: stop, backward: false })
            .unwrap();
        assert_eq!(passes.read().unwrap()[..2], [5.0, 1.0]);
        passes.combine(&mut y, add).unwrap();
        let one = Coefficient::ONE;
        passes
            .step(
                &mut x,
                &mut y,
                Step { along: one, with: one, r: &v, diagonal: None, keep: one, backward: false },
            )
            .unwrap();
        passes
            .dots(Dots {
                of: &v,
                with: Some(&v),
                and: None,
                at: 8,
                then: Program::default(),
                backward: false,
            })
            .unwrap();
        assert_eq!(
            (x.to_vec().unwrap(), y.to_vec().unwrap(), passes.read().unwrap()[8]),
            (vec![0.0; 2], vec![1.0, 2.0], 3.0)
        );
        passes.combine(&mut y, Combine { always: true, ..add }).unwrap();
        assert_eq!(y.to_vec().unwrap(), [2.0, 4.0]);
    }
}

#[test]
fn what_does_not_fit_is_refused_and_nothing_is_done() {
    for device in devices() {
        let stream = Stream::new(device).unwrap();
        let mut passes = Passes::<f64>::new(&stream, 64, Code::new()).unwrap();
        let mut y = DeviceVec::from_slice(device, &[1.0, 2.0]).unwrap();
        let long = DeviceVec::zeros(device, 3).unwrap();
        let one = Coefficient::ONE;
        let refused = [
            (
                Combine { add: Some((one, &long)), ..Combine::new() },
                "`u` has 3 elements, and the others have 2",
            ),
            (Combine { keep: Some(Coefficient::plus(64)), ..Combine::new() }, "names 64"),
            (Combine { scaled: true, ..Combine::new() }, "missing"),
            (Combine { sums: [Partner::Itself, Partner::Other], ..Combine::new() }, "missing"),
            (
                Combine { sums: [Partner::Absent, Partner::Itself], ..Combine::new() },
                "without a first sum",
            ),
            (
                Combine { sums: [Partner::Itself, Partner::Itself], at: 63, ..Combine::new() },
                "no registers",
            ),
            (
                Combine { sums: [Partner::Itself, Partner::Change], ..Combine::new() },
                "only the first",
            ),
        ];
        for (pass, expected) in refused {
            let message = passes.combine(&mut y, pass).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        }
        assert_eq!(y.to_vec().unwrap(), [1.0, 2.0]);
        assert!(Passes::<f64>::new(&stream, MAX_REGISTERS + 1, Code::new()).is_err());
        if *device != Device::Cpu {
            let elsewhere = DeviceVec::zeros(&Device::Cpu, 2).unwrap();
            let pass = Combine { add: Some((one, &elsewhere)), ..Combine::new() };
            assert!(
                passes.combine(&mut y, pass).unwrap_err().to_string().contains("`u` is on cpu")
            );
        }
    }
}

#[test]
fn registers_are_neither_read_nor_set_while_a_graph_is_captured() {
    for device in devices() {
        let Device::Cuda(_) = device else { continue };
        let stream = Stream::new(device).unwrap();
        let mut passes = Passes::<f64>::new(&stream, MAX_REGISTERS, Code::new()).unwrap();
        let values: Vec<f64> = (0..MAX_REGISTERS).map(|i| i as f64).collect();
        passes.write(&values).unwrap();
        let refused = [
            stream.capture(&mut || passes.read().map(drop)).unwrap_err(),
            stream.capture(&mut || passes.write(&[0.0; MAX_REGISTERS])).unwrap_err(),
        ];
        for error in refused {
            assert!(error.to_string().contains("captured for a graph"), "{error}");
        }
        assert_eq!(passes.read().unwrap(), values);
    }
}

#[test]
fn graphs_and_passes_on_two_streams_have_sums_of_their_own() {
    let Some(gpu) = devices().iter().find(|device| **device != Device::Cpu) else { return };
    let (stream, second) = (Stream::new(gpu).unwrap(), Stream::new(gpu).unwrap());
    let mut passes = Passes::<f64>::new(&stream, 64, Code::new()).unwrap();
    let vector = DeviceVec::from_slice(gpu, &x_vector::<f64>(1_000_001)).unwrap();
    let dots = |at| Dots {
        of: &vector,
        with: None,
        and: None,
        at,
        then: Program::default(),
        backward: false,
    };
    passes.dots(dots(8)).unwrap();
    let expected = passes.read().unwrap()[8];
    let graph = stream.capture(&mut || passes.dots(dots(10))).unwrap();
    for _ in 0..1000 {
        graph.launch(&second).unwrap();
        passes.dots(dots(12)).unwrap();
    }
    second.synchronize().unwrap();
    passes.dots(dots(14)).unwrap();
    let registers = passes.read().unwrap();
    assert_eq!([10, 12, 14].map(|at| registers[at]), [expected; 3]);
}
