//! Products and new values on a stream of a GPU return before they are done.

use super::conformance::scattered;
use super::devices::{few_cases, gpu, keep_busy};
use super::spmm::apply_multi_device;
use super::{child, x_vector};
use crate::device::{Device, DeviceVec, Stream};
use crate::formats::Layout;
use crate::{Error, SparseOpBuilder, Tuning};
use std::time::Instant;

/// Numbers of vectors: `csr(balanced)` multiplies the first by one unit, and the second by groups
/// of lanes.
const COUNTS: [usize; 2] = [2, 8];

/// In a process of its own: a thread that frees memory waits for the GPU, and the driver keeps all
/// others of the process waiting.
#[test]
fn work_on_a_stream_is_enqueued_and_returns_before_it_is_done() {
    const NAME: &str =
        "testing::enqueued::work_on_a_stream_is_enqueued_and_returns_before_it_is_done";
    const CHILD: &str = "SPARSEOP_TEST_ENQUEUED";
    let device = gpu();
    if std::env::var_os(CHILD).is_some() {
        assert_enqueued(device.expect("the parent process has one"));
    } else if device.is_some() {
        child::finish(child::start(NAME, (CHILD, "1")));
    }
}

fn assert_enqueued(device: &Device) {
    // Rows of all lengths, one of them split many times.
    let a = scattered::<f64>(9000, 5000, |row| if row == 4000 { 90_000 } else { row % 23 });
    let builder = SparseOpBuilder::new().device(device.clone()).updatable(true);
    let plan = "csr(balanced)".parse().unwrap();
    let mut op = builder.tuning(Tuning::Fixed(plan)).build(&a).unwrap();
    let vector = |len| DeviceVec::from_slice(device, &x_vector::<f64>(len)).unwrap();
    let (stream, values) = (Stream::new(device).unwrap(), vector(a.nnz()));
    let (x, across, many) = (vector(a.ncols()), vector(a.nrows()), vector(8 * a.ncols()));
    let (mut y, mut back, mut results) =
        (vector(a.nrows()), vector(a.ncols()), vector(8 * a.nrows()));
    let few = COUNTS[0];
    let (some, mut products) = (vector(few * a.ncols()), vector(few * a.nrows()));
    let busy = SparseOpBuilder::new().device(device.clone()).build(&a).unwrap();
    let mut busy_y = vector(a.nrows());
    let mut enqueue_all = || -> Result<(), Error> {
        op.apply_device(&stream, &x, &mut y)?;
        op.apply_device_with(&stream, 0.5, &x, -0.5, &mut y)?;
        op.apply_transpose_device(&stream, &across, &mut back)?;
        for layout in [Layout::RowMajor, Layout::ColumnMajor] {
            apply_multi_device(&op, &stream, few, &some, &mut products, layout)?;
            apply_multi_device(&op, &stream, COUNTS[1], &many, &mut results, layout)?;
        }
        Ok(())
    };
    // The first products on a stream allocate.
    enqueue_all().unwrap();
    let _busy = keep_busy(&busy, &stream, &x, &mut busy_y);
    let begin = Instant::now();
    enqueue_all().unwrap();
    let enqueued = begin.elapsed();
    stream.synchronize().unwrap();
    let done = begin.elapsed();
    // Times under a tool are those of the tool.
    assert!(few_cases() || 2 * enqueued < done, "{enqueued:?} of {done:?}");
    // So do the first new values, which also free the transposed matrix.
    op.update_values_device(&stream, &values).unwrap();
    let _busy = keep_busy(&busy, &stream, &x, &mut busy_y);
    let begin = Instant::now();
    op.update_values_device(&stream, &values).unwrap();
    op.apply_device(&stream, &x, &mut y).unwrap();
    let enqueued = begin.elapsed();
    stream.synchronize().unwrap();
    assert!(few_cases() || 2 * enqueued < begin.elapsed(), "{enqueued:?}");
}
