//! Timing for the examples.

use sparseop::{Error, Stream};
use std::time::Instant;

/// Products between two readings of the clock.
const BATCH: u32 = 20;

/// Batches of each operation, of which the median counts.
const ROUNDS: usize = 9;

/// Microseconds of each operation, the median of batches in turns.
///
/// # Errors
///
/// What an operation gives.
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
