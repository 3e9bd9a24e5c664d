//! A file of any text is read to a vector or to an error. A vector is written as a file that is
//! read to the same bits. What is compressed is left to `archive`, which has a limit.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sparseop::matrix::market::{read_vector, write_vector};
use sparseop_fuzz::file_of;

fuzz_target!(|text: &str| {
    let file = file_of(text.as_bytes());
    if let Ok(vector) = read_vector::<f64>(file) {
        write_vector(file, &vector).unwrap();
        let again = read_vector::<f64>(file).unwrap();
        let same = |(a, b): (&f64, &f64)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
        assert!(again.len() == vector.len() && again.iter().zip(&vector).all(same));
    }
});
