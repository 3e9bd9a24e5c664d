//! Link matrices of graphs whose rows are distributed.

use crate::comm::{Communicator, agree, reported};
use crate::market::by_entries;
use crate::partition::Partition;
use crate::transpose::EntryArrays;
use sparseop::matrix::CsrMatrix;
use sparseop::{Error, Scalar};
use sparseop_solvers::{check_square, scale_links};

/// Own rows of the [link matrix](sparseop_solvers::link_matrix) of a graph, and their partition,
/// from the own rows of the graph.
pub(crate) fn link_rows<T: Scalar>(
    comm: &dyn Communicator,
    partition: &Partition,
    mut own: CsrMatrix<T>,
) -> Result<(Partition, CsrMatrix<T>), Error> {
    let (pages, ncols) = (partition.offsets()[partition.parts()], own.ncols());
    check_square("pagerank", (pages, ncols))?;
    let first = partition.rows(comm.rank()).start;
    let mut entries = reported(comm, EntryArrays::reserved(own.nnz()))?;
    let scaled = (0..own.nrows()).try_for_each(|row| {
        let range = own.row_ptr()[row]..own.row_ptr()[row + 1];
        scale_links(first + row, &mut own.values_mut()[range.clone()])?;
        for (&page, &weight) in own.col_idx()[range.clone()].iter().zip(&own.values()[range]) {
            entries.push(page, (first + row) as u32, weight);
        }
        Ok(())
    });
    agree(comm, scaled)?;
    drop(own);
    let partition = by_entries(comm, pages, &entries.rows)?;
    let entries = entries.redistribute(comm, partition.offsets())?;
    let rows = partition.rows(comm.rank()).len();
    Ok((partition, agree(comm, entries.to_csr(rows, pages))?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::RowSelection;
    use crate::threads::{ThreadRank, on_threads};
    use sparseop::matrix::gallery;
    use sparseop_solvers::link_matrix;
    use std::time::Duration;

    #[test]
    fn rows_are_those_of_the_link_matrix() {
        let graph = "webbase,rows=300".parse::<gallery::Spec>().unwrap().generate::<f64>().unwrap();
        let mut graph = graph;
        graph.values_mut().iter_mut().for_each(|weight| *weight = weight.abs());
        let whole = link_matrix(graph.view()).unwrap();
        for count in [1, 2, 3] {
            let ranks = ThreadRank::group(count, Duration::from_secs(20), None);
            let partition = Partition::of_rows(graph.row_ptr(), count).unwrap();
            let rows_of = |rank: usize, partition: &Partition, a: &CsrMatrix<f64>| {
                let rows: Vec<u32> = partition.rows(rank).map(|row| row as u32).collect();
                RowSelection::unchanged(a.view(), &rows).unwrap().into_owned().unwrap()
            };
            on_threads(&ranks, ranks.clone(), |rank| {
                let own = rows_of(rank.rank(), &partition, &graph);
                let (found_partition, found) = link_rows(&*rank, &partition, own)?;
                assert_eq!(found, rows_of(rank.rank(), &found_partition, &whole));
                Ok(())
            })
            .unwrap();
            let negative = on_threads(&ranks, ranks.clone(), |rank| {
                let mut own = rows_of(rank.rank(), &partition, &graph);
                if rank.rank() == count - 1 {
                    own.values_mut()[0] = -1.0;
                }
                link_rows(&*rank, &partition, own).map(|_| ())
            });
            assert!(negative.unwrap_err().to_string().contains("the weight of a link"));
        }
    }
}
