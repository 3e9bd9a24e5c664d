//! Common parts of the subcommands that run as MPI ranks.

use anyhow::Result;
use sparseop::Scalar;
use sparseop::matrix::CsrMatrix;
use sparseop_distributed::{Communicator, DistributedExplanation, Partition};

/// Own rows of a matrix that every rank has, and their partition by entries.
pub(super) fn cut<T: Scalar>(
    a: CsrMatrix<T>,
    comm: &dyn Communicator,
) -> Result<(Partition, CsrMatrix<T>)> {
    let before = |row: usize| (a.row_ptr()[row] + row) as u64;
    let partition = Partition::balanced(a.nrows(), comm.size(), before)?;
    let rows = partition.rows(comm.rank());
    let entries = a.row_ptr()[rows.start]..a.row_ptr()[rows.end];
    let ends = a.row_ptr()[rows.start..=rows.end].iter().map(|end| end - entries.start).collect();
    let (columns, values) = (a.col_idx()[entries.clone()].to_vec(), a.values()[entries].to_vec());
    let own = CsrMatrix::try_new(rows.len(), a.ncols(), ends, columns, values)?;
    Ok((partition, own))
}

/// All elements of a vector of which every rank has some.
pub(super) fn gathered<T: Scalar>(comm: &dyn Communicator, own: &[T]) -> Result<Vec<T>> {
    let count = (own.len() as u64).to_ne_bytes();
    let counts = comm.all_gather(&count, &vec![count.len(); comm.size()])?;
    let (counts, _) = counts.as_chunks::<8>();
    let lengths = counts.iter().map(|count| 8 * u64::from_ne_bytes(*count) as usize);
    let own: Vec<u8> = own.iter().flat_map(|number| number.bits().to_ne_bytes()).collect();
    let all = comm.all_gather(&own, &lengths.collect::<Vec<_>>())?;
    let (all, _) = all.as_chunks::<8>();
    Ok(all.iter().map(|bits| T::from_bits(u64::from_ne_bytes(*bits))).collect())
}

/// Ranks and plans of an operator, as text.
pub(super) fn describe(explanation: &DistributedExplanation) -> [String; 2] {
    let mut plans: Vec<&str> =
        explanation.parts.iter().flat_map(|part| &part.plans).map(String::as_str).collect();
    plans.retain(|plan| !plan.is_empty());
    plans.sort_unstable();
    plans.dedup();
    let ranks = match explanation.parts.len() {
        1 => "1 MPI rank".to_owned(),
        ranks => format!("{ranks} MPI ranks"),
    };
    [ranks, plans.join(", ")]
}
