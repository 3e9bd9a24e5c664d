//! `mpirun -n 4 sparseop rank`: every process is an MPI rank with some pages.

use super::{RankArgs, Ranked, check_weights, print, settings};
use crate::console::Console;
use crate::job::{as_rank, describe, gathered, warn_of};
use crate::matrix_arg::MatrixSource;
use anyhow::Result;
use sparseop::tuning::stopwatch::timed;
use sparseop::{Device, Scalar};
use sparseop_distributed::{Communicator, DistributedBuilder, MpiRank, PartOp};
use sparseop_solvers::{Ranking, link_matrix};
use std::sync::Arc;
use std::time::Duration;

/// Ranks the pages together with the other ranks. Rank 0 writes and prints the result.
pub(super) fn rank<T: Scalar>(args: &RankArgs, console: &Console) -> Result<()> {
    as_rank(args.rank_seconds, |comm| rank_part::<T>(args, comm, console))
}

fn rank_part<T: Scalar>(args: &RankArgs, comm: &Arc<MpiRank>, console: &Console) -> Result<()> {
    let of_rank = args.choice.rank_device(&**comm, console)?;
    let (part, prepare_seconds) = timed(|| part::<T>(args, comm, &of_rank));
    let part = part?;
    let explanation = part.explain(part.link())?;
    let ranking = part.rank_pages(args.damping, settings(args))?;
    let ranking = Ranking { ranks: gathered(&**comm, &ranking.ranks)?, ..ranking };
    if comm.rank() > 0 {
        return Ok(());
    }
    console.detail(|| explanation.to_string());
    let nnz = explanation.parts.iter().map(|part| part.nnz).sum();
    warn_of(part.file_findings(), &args.graph.name(), nnz, console);
    let [device, plan] = describe(&explanation);
    let op = Ranked {
        pages: part.shape().0,
        links: explanation.parts.iter().map(|part| part.nnz).sum(),
        device: [of_rank.spec().name, device],
        plan,
        ranks: Some(comm.size()),
        prepare_seconds,
    };
    print(args, &op, ranking, console)
}

/// The part of this rank: read in parallel from a file, or cut from a generated graph.
fn part<T: Scalar>(args: &RankArgs, comm: &Arc<MpiRank>, device: &Device) -> Result<PartOp<T>> {
    let builder = DistributedBuilder::new(comm.size())
        .rank_device(device.clone())
        .time_limit(Duration::from_secs_f64(args.rank_seconds))
        .operator(args.choice.builder()?);
    let graph = match &args.graph {
        MatrixSource::Path(path) => return Ok(builder.read_links(comm.clone(), path)?),
        MatrixSource::Gallery(spec) => spec.generate::<T>()?,
    };
    check_weights(&graph)?;
    Ok(builder.build_part_of(comm.clone(), &link_matrix(graph.view())?)?)
}
