//! Tests of work that runs beside that of another stream.

use super::devices::gpu;
use super::x_vector;
use crate::device::{DeviceVec, SideStream, Stream};
use crate::matrix::gallery;
use crate::{Error, SparseOp, SparseOpBuilder, Tuning};
use std::thread;

/// Number of repetitions.
const ROUNDS: usize = 50;

/// Products before, beside and after each other, in vectors of one length.
struct Products {
    op: SparseOp<f64>,
    vectors: [DeviceVec<f64>; 5],
}

impl Products {
    /// `v1 = A v0`, then `v2 = A v1` beside `v3 = A v1`, and `v4 = A v2`; then `v0` is `v4`.
    fn enqueue(&mut self, stream: &Stream, side: Option<&SideStream>) -> Result<(), Error> {
        let (op, [v0, v1, v2, v3, v4]) = (&self.op, &mut self.vectors);
        op.apply_device(stream, v0, v1)?;
        let v1 = &*v1;
        let mut aside = |stream: &Stream| op.apply_device(stream, v1, v2);
        let mut work = || op.apply_device(stream, v1, v3);
        match side {
            Some(side) => side.run(stream, aside, work)?,
            None => aside(stream).and_then(|()| work())?,
        }
        op.apply_device(stream, v2, v4)?;
        op.apply_device(stream, v4, v0)
    }

    fn bits(&self) -> Vec<Vec<u64>> {
        let bits = |vector: &DeviceVec<f64>| {
            vector.to_vec().unwrap().into_iter().map(f64::to_bits).collect()
        };
        self.vectors.iter().map(bits).collect()
    }
}

#[test]
fn work_aside_comes_after_earlier_and_before_later_work() {
    let Some(device) = gpu() else { return };
    let a = "banded,rows=50k".parse::<gallery::Spec>().unwrap().generate::<f64>().unwrap();
    let start = x_vector::<f64>(a.ncols());
    let products = || {
        let builder = SparseOpBuilder::new().device(device.clone());
        let op = builder.tuning(Tuning::Fixed("csr(vector:8)".parse().unwrap())).build(&a).unwrap();
        let vector = |_| DeviceVec::from_slice(device, &start).unwrap();
        Products { op, vectors: [0; 5].map(vector) }
    };
    let (mut in_order, mut beside, mut captured) = (products(), products(), products());
    let stream = Stream::new(device).unwrap();
    let side = SideStream::new(device).unwrap();
    let (launched, side_of_graph) =
        (Stream::new(device).unwrap(), SideStream::new(device).unwrap());
    let graph = launched
        .capture(&mut || {
            // Nothing that other threads wait for is part of the capture.
            thread::scope(|scope| {
                scope.spawn(|| in_order.vectors[0].to_vec().unwrap());
            });
            captured.enqueue(&launched, Some(&side_of_graph))?;
            captured.enqueue(&launched, Some(&side_of_graph))
        })
        .unwrap();
    for round in 0..ROUNDS {
        for _ in 0..2 {
            in_order.enqueue(&stream, None).unwrap();
            beside.enqueue(&stream, Some(&side)).unwrap();
        }
        graph.launch(&launched).unwrap();
        stream.synchronize().unwrap();
        launched.synchronize().unwrap();
        let expected = in_order.bits();
        assert!(beside.bits() == expected, "round {round}");
        assert!(captured.bits() == expected, "round {round} of the graph");
    }
    // The side stream is usable after the capture.
    captured.enqueue(&launched, Some(&side_of_graph)).unwrap();
    in_order.enqueue(&stream, None).unwrap();
    assert!(captured.bits() == in_order.bits());
}
