//! Common parts of the subcommands that run as MPI ranks.

use anyhow::Result;
use sparseop::Scalar;
use sparseop_distributed::{Communicator, DistributedExplanation};

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
