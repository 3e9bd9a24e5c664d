//! Time to read a Matrix Market file into CSR, for a comparison with other readers of the same
//! file.
//!
//! ```sh
//! cargo bench --bench read_market -- FILE.mtx [ROUNDS]            # one JSON line: median seconds
//! cargo bench --bench read_market -- --generate NNZ FILE.mtx   # a random matrix, 20 entries a row
//! cargo bench --bench read_market -- --serve FILE.mtx          # one reading per line on stdin
//! ```
//!
//! Without a file, as in a bare `cargo bench`, it does nothing.
#![allow(clippy::print_stdout)]

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use sparseop::Error;
use sparseop::matrix::{Triplets, market};
use std::time::Instant;

const DEFAULT_ROUNDS: usize = 5;
const ENTRIES_PER_ROW: usize = 20;

fn main() -> Result<(), Error> {
    // Cargo itself adds `--bench`.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["--generate", nnz, file] => generate(nnz.parse().unwrap_or(1_000_000), file),
        ["--serve", file] => {
            for _ in std::io::stdin().lines() {
                let (seconds, nnz) = time(file)?;
                println!(r#"{{"seconds":{seconds},"nnz":{nnz}}}"#);
            }
            Ok(())
        }
        [file] => median(file, DEFAULT_ROUNDS),
        [file, rounds] => median(file, rounds.parse().unwrap_or(DEFAULT_ROUNDS)),
        _ => Ok(()),
    }
}

fn median(file: &str, rounds: usize) -> Result<(), Error> {
    let mut readings = (0..rounds.max(1)).map(|_| time(file)).collect::<Result<Vec<_>, Error>>()?;
    readings.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (seconds, nnz) = readings[readings.len() / 2];
    let threads = rayon::current_num_threads();
    print!(r#"{{"file":{file:?},"nnz":{nnz},"threads":{threads},"#);
    println!(r#""rounds":{rounds},"median_s":{seconds}}}"#);
    Ok(())
}

/// Reads the file. Returns the seconds, without the time to free the matrix, and the number of
/// entries.
fn time(file: &str) -> Result<(f64, usize), Error> {
    let start = Instant::now();
    let matrix = market::read::<f64>(file)?;
    Ok((start.elapsed().as_secs_f64(), matrix.nnz()))
}

/// Writes a square matrix with uniformly random positions and values.
fn generate(nnz: usize, file: &str) -> Result<(), Error> {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
    let n = nnz.div_ceil(ENTRIES_PER_ROW);
    let mut triplets = Triplets::new(n, n)?;
    for _ in 0..nnz {
        let bits = random.next_u64();
        let row = (bits >> 32) as usize % n;
        let col = bits as u32 as usize % n;
        triplets.push(row, col, (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64)?;
    }
    market::write(file, triplets.to_csr().view())
}
