//! Timing for the examples.

use sparseop::{Error, Stream};
use std::time::Instant;

/// Number of products between two readings of the clock.
const BATCH: u32 = 20;

/// Number of batches of each operation. The median counts.
const ROUNDS: usize = 9;

/// Median microseconds of each operation, timed in batches in turn.
///
/// # Errors
///
/// The error of an operation.
pub(crate) fn medians<const N: usize>(
    stream: &Stream,
    mut operations: [&mut dyn FnMut() -> Result<(), Error>; N],
) -> Result<[f64; N], Error> {
    let mut times = [[0.0; ROUNDS]; N];
    for round in 0..ROUNDS {
        for (operation, times) in operations.iter_mut().zip(&mut times) {
            let start = Instant::now();
            for _ in 0..BATCH {
                operation()?;
            }
            stream.synchronize()?;
            times[round] = start.elapsed().as_secs_f64() / f64::from(BATCH) * 1e6;
        }
    }
    Ok(times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[ROUNDS / 2]
    }))
}
