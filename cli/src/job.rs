//! Common parts of the subcommands that run as MPI ranks.

use crate::console::{Console, cause_chain};
use crate::launcher;
use crate::matrix_arg::{above_the_diagonal, not_finite};
use anyhow::Result;
use sparseop::Scalar;
use sparseop_distributed::{
    Communicator, DistributedExplanation, FileFindings, MpiRank, check_equal,
};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// Joins the MPI job, and does the work of this rank. An error is reported to the other ranks. The
/// ranks must have the same arguments.
pub(super) fn as_rank(seconds: f64, work: impl FnOnce(&Arc<MpiRank>) -> Result<()>) -> Result<()> {
    let limit = Duration::from_secs_f64(seconds);
    let comm = joined(limit)?;
    if let Some(started) = launcher::ranks().filter(|started| *started != comm.size()) {
        anyhow::bail!(
            "{started} processes were started, but MPI knows {} of them; start them with the \
             mpirun of the MPI library that the program was built with, or with srun --mpi=pmix",
            comm.size()
        );
    }
    let done = check_equal(&*comm, "arguments", &crate::command_line());
    let done = done.map_err(Into::into).and_then(|()| work(&comm));
    if let Err(error) = &done {
        comm.fail(&cause_chain(error));
    }
    done
}

/// Joins the MPI job. MPI waits for all ranks to start: the process ends if that takes longer than
/// the limit.
fn joined(limit: Duration) -> Result<Arc<MpiRank>> {
    let (done, watch) = channel::<()>();
    let waiting = move || {
        if watch.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
            let seconds = limit.as_secs_f64();
            eprintln!("error: another rank has not started within {seconds} s");
            std::process::exit(crate::FAILURE.into());
        }
    };
    std::thread::Builder::new().spawn(waiting)?;
    let comm = MpiRank::world(limit);
    drop(done);
    Ok(comm?)
}

/// All elements of a vector of which every rank has some.
pub(super) fn gathered<T: Scalar>(comm: &dyn Communicator, own: &[T]) -> Result<Vec<T>> {
    let count = (own.len() as u64).to_ne_bytes();
    let counts = comm.all_gather(&count, &vec![count.len(); comm.size()])?;
    let (counts, _) = counts.as_chunks::<8>();
    let lengths = counts.iter().map(|count| 8 * u64::from_ne_bytes(*count) as usize);
    let mut bytes = sparseop::reserved(size_of::<u64>() * own.len())?;
    own.iter().for_each(|number| bytes.extend_from_slice(&number.bits().to_ne_bytes()));
    let all = comm.all_gather(&bytes, &lengths.collect::<Vec<_>>())?;
    let (all, _) = all.as_chunks::<8>();
    let numbers = all.iter().map(|bits| T::from_bits(u64::from_ne_bytes(*bits)));
    Ok(sparseop::listed(numbers)?)
}

/// Warns of the oddities of a file.
pub(super) fn warn_of(findings: FileFindings, name: &str, values: u64, console: &Console) {
    let FileFindings { above_diagonal, nan, infinite } = findings;
    for said in [above_the_diagonal(above_diagonal), not_finite(nan, infinite, values)] {
        said.inspect(|said| console.warn(&format!("{name}: {said}")));
    }
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
    let plans = if plans.is_empty() { "none".to_owned() } else { plans.join(", ") };
    [ranks, plans]
}
