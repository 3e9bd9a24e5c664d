//! Partitions by METIS: parts of about equal work with few elements to exchange.

use sparseop::matrix::CsrView;
use sparseop::{Error, Scalar};
use std::os::raw::c_int;

/// Part of every row of a square matrix, by the k-way partitioning of METIS: the graph has a vertex
/// for each row, with its entries as weight, and an edge for each entry or transposed entry. For
/// [`DistributedBuilder::partition`](crate::DistributedBuilder::partition), and for programs that
/// reorder a matrix before it is distributed.
///
/// # Errors
///
/// [`Error::NotSquare`]; [`Error::Partition`] for 0 parts, if the graph exceeds what
/// METIS can count, or if METIS fails.
pub fn metis_parts<T: Scalar>(a: CsrView<'_, T>, parts: usize) -> Result<Vec<u32>, Error> {
    let (nrows, ncols) = (a.nrows(), a.ncols());
    if nrows != ncols {
        return Err(Error::NotSquare { method: "a partition by METIS", nrows, ncols });
    }
    let refused = |message: String| Error::Partition { message };
    if parts == 0 {
        return Err(refused("a matrix has one part or more, not 0".to_owned()));
    }
    if parts == 1 || nrows <= parts {
        return Ok((0..nrows as u32).map(|row| if parts == 1 { 0 } else { row }).collect());
    }
    let large = |_| refused("the graph has more edges than METIS can count".to_owned());
    c_int::try_from(a.nnz().saturating_mul(2)).map_err(large)?;
    let (starts, neighbours) = edges(a)?;
    let weights: Vec<c_int> = (0..nrows).map(|row| a.row_len(row) as c_int + 1).collect();
    let mut found = vec![0; nrows];
    let failed = |error: &dyn std::fmt::Display| refused(format!("METIS fails: {error}"));
    metis::Graph::new(1, parts as c_int, &starts, &neighbours)
        .map_err(|error| failed(&error))?
        .set_vwgt(&weights)
        .part_kway(&mut found)
        .map_err(|error| failed(&error))?;
    Ok(found.into_iter().map(|part| part as u32).collect())
}

/// Neighbours of every row in the graph of A + Aᵀ without its diagonal, and where they begin.
fn edges<T: Scalar>(a: CsrView<'_, T>) -> Result<(Vec<c_int>, Vec<c_int>), Error> {
    let transposed = a.try_transpose()?;
    let (mut starts, mut neighbours) = (vec![0], Vec::with_capacity(a.nnz()));
    let mut of_row = Vec::new();
    for row in 0..a.nrows() {
        of_row.clear();
        of_row.extend_from_slice(a.row(row).0);
        of_row.extend_from_slice(transposed.view().row(row).0);
        of_row.sort_unstable();
        of_row.dedup();
        let others = of_row.iter().filter(|column| **column as usize != row);
        neighbours.extend(others.map(|column| *column as c_int));
        starts.push(neighbours.len() as c_int);
    }
    Ok((starts, neighbours))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DistributedBuilder, DistributedOp};
    use sparseop::matrix::{CsrMatrix, gallery};

    fn matrix(spec: &str) -> CsrMatrix<f64> {
        spec.parse::<gallery::Spec>().unwrap().generate().unwrap()
    }

    #[test]
    fn a_grid_has_a_smaller_halo_than_in_its_natural_order() {
        let a = matrix("poisson3d,n=16");
        let parts = metis_parts(a.view(), 8).unwrap();
        let op = DistributedBuilder::new(8).partition(parts).build(&a).unwrap();
        let natural = DistributedOp::auto(&a, 8).unwrap();
        let halo = |op: &DistributedOp<f64>| {
            op.explain().parts.iter().map(|part| part.halo_bytes).sum::<u64>()
        };
        assert!(halo(&op) < halo(&natural), "{} {}", halo(&op), halo(&natural));
        assert!(op.explain().imbalance() < 1.1, "{}", op.explain());
        let (x, mut y, mut expected) = (vec![1.0; 4096], vec![0.0; 4096], vec![0.0; 4096]);
        op.apply(&x, &mut y).unwrap();
        natural.apply(&x, &mut expected).unwrap();
        assert_eq!(y, expected);
    }

    #[test]
    fn any_shape_is_partitioned_or_refused() {
        let a = matrix("webbase,rows=300");
        assert!(metis_parts(a.view(), 5).unwrap().iter().all(|part| *part < 5));
        assert_eq!(metis_parts(a.view(), 1).unwrap(), vec![0; 300]);
        for n in [0, 1, 3] {
            let zeros = CsrMatrix::<f32>::zeros(n, n).unwrap();
            for parts in [1, 2, 4] {
                let found = metis_parts(zeros.view(), parts).unwrap();
                assert!(found.len() == n && found.iter().all(|part| (*part as usize) < parts));
            }
        }
        assert!(metis_parts(a.view(), 0).is_err());
        let wide = CsrMatrix::<f32>::zeros(2, 3).unwrap();
        assert!(matches!(metis_parts(wide.view(), 2), Err(Error::NotSquare { .. })));
    }
}
