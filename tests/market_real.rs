//! Real matrices from a folder, if given: each has the shape and the entries of the index.
#![allow(clippy::print_stderr)]

use sparseop::matrix::market;
use std::fs;
use std::path::Path;

#[test]
fn real_matrices_have_the_shape_of_the_index() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/matrices");
    let Ok(index) = fs::read_to_string(folder.join("INDEX.tsv")) else {
        eprintln!("skipped: no {}", folder.join("INDEX.tsv").display());
        return;
    };
    let mut read = 0;
    for line in index.lines().skip(1) {
        let columns: Vec<&str> = line.split('\t').collect();
        let [rows, cols, nnz] = [1, 2, 3].map(|k| columns[k].parse::<usize>().expect(line));
        let file = folder.join(columns.last().expect("a line has columns"));
        assert!(market::is_matrix_path(&file));
        match market::read::<f32>(&file) {
            Ok(a) => assert_eq!((a.nrows(), a.ncols(), a.nnz()), (rows, cols, nnz), "{line}"),
            Err(error) => {
                assert_eq!(columns[4], "complex", "{error}");
                assert!(
                    error.to_string().contains("complex matrices are not supported"),
                    "{error}"
                );
            }
        }
        read += 1;
    }
    assert!(read > 0, "the index is empty");
}
