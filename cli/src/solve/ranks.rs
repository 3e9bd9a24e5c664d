//! `mpirun -n 4 sparseop solve`: every process is an MPI rank with some rows of the matrix.

use super::method::{ComparedRows, Suitability, needs_positive_definite};
use super::result::{OpText, SolveResult, print};
use super::{
    Name, Preconditioner, SolveArgs, check_square, method_of, next_method, settings, spinner,
    suitable,
};
use crate::console::Console;
use crate::job::{as_rank, describe, gathered, warn_of};
use crate::matrix_arg::MatrixSource;
use anyhow::{Result, bail};
use sparseop::matrix::market;
use sparseop::tuning::stopwatch::timed;
use sparseop::{Device, Scalar};
use sparseop_distributed::{
    Communicator, DistributedBuilder, DistributedExplanation, MpiRank, PartOp,
};
use sparseop_solvers::{Report, SolverBuilder};
use std::sync::Arc;
use std::time::Duration;

/// Solves the system together with the other ranks. Rank 0 writes and prints the result.
pub(super) fn solve<T: Scalar>(args: &SolveArgs, console: &Console) -> Result<()> {
    if args.method == Name::Power {
        bail!("power iteration does not run on several ranks; start one process");
    }
    as_rank(args.rank_seconds, |comm| solve_part::<T>(args, comm, console))
}

fn solve_part<T: Scalar>(args: &SolveArgs, comm: &Arc<MpiRank>, console: &Console) -> Result<()> {
    let device = args.choice.rank_device(&**comm, console)?;
    let is_first = comm.rank() == 0;
    if is_first {
        args.warn_of_ignored_options(console);
        if args.timing {
            console.warn("--timing is ignored: it is for a single process");
        }
    }
    let (part, prepare) = timed(|| part::<T>(args, comm, &device));
    let part = part?;
    check_square(args, part.shape())?;
    let explanation = part.explain(part.link())?;
    if is_first {
        console.detail(|| explanation.to_string());
        let nnz = explanation.parts.iter().map(|part| part.nnz).sum();
        warn_of(part.file_findings(), &args.matrix.name(), nnz, console);
    }
    let looked = args.method == Name::Auto || needs_positive_definite(args.method);
    let looked = if looked { compare(&part, &**comm)? } else { None };
    let (mut name, mut why) = suitable(args, looked)?;
    let b = right_hand_side(args, &part)?;
    let (mut x, mut report) = run(args, name, &part, &b, is_first.then_some(console))?;
    if let Some((next, reason)) = next_method(args, report.outcome) {
        (name, why) = (next, Some(reason));
        (x, report) = run(args, name, &part, &b, is_first.then_some(console))?;
    }
    let whole = if args.out.is_some() { gathered(&**comm, &x)? } else { Vec::new() };
    if !is_first {
        return Ok(());
    }
    let done = SolveResult::of(whole, report, prepare, None);
    done.write(args)?;
    print(args, (name, why), &text(&explanation, &device), &done, None, console)?;
    if let Some(failure) = done.failure {
        console.error(&failure.to_string());
    }
    Ok(())
}

/// The part of this rank: read in parallel from a file, or cut from a generated matrix.
fn part<T: Scalar>(args: &SolveArgs, comm: &Arc<MpiRank>, device: &Device) -> Result<PartOp<T>> {
    let builder = DistributedBuilder::new(comm.size())
        .rank_device(device.clone())
        .time_limit(Duration::from_secs_f64(args.rank_seconds))
        .operator(args.choice.builder_for(args.plan.as_ref())?)
        .same_bits(args.plan.is_none());
    Ok(match &args.matrix {
        MatrixSource::Path(path) => builder.read_part(comm.clone(), path)?,
        MatrixSource::Gallery(spec) => {
            builder.build_part_of(comm.clone(), &spec.generate::<T>()?)?
        }
    })
}

/// Compares a square matrix with its transpose.
fn compare<T: Scalar>(part: &PartOp<T>, comm: &dyn Communicator) -> Result<Option<Suitability>> {
    if part.shape().0 != part.shape().1 {
        return Ok(None);
    }
    let (own, mirror) = (part.to_csr()?, part.transposed_rows()?);
    let own = ComparedRows::of(own.view(), mirror.view(), part.own_rows().start);
    let row = own.not_positive.map_or(-1.0, |row| row as f64);
    let words = [own.squares, own.all, own.differing, own.entries, row];
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let all = comm.all_gather(&bytes, &vec![bytes.len(); comm.size()])?;
    let (words, _) = all.as_chunks::<8>();
    let words: Vec<f64> = words.iter().map(|word| f64::from_ne_bytes(*word)).collect();
    let rows = words.chunks_exact(5).map(|words| ComparedRows {
        squares: words[0],
        all: words[1],
        differing: words[2],
        entries: words[3],
        not_positive: (words[4] >= 0.0).then_some(words[4] as usize),
    });
    Ok(Some(Suitability::from(&rows.collect::<Vec<_>>())))
}

/// Own elements of the vector b of --rhs, or of A times all ones.
fn right_hand_side<T: Scalar>(args: &SolveArgs, part: &PartOp<T>) -> Result<Vec<T>> {
    let Some(file) = &args.rhs else {
        let mut b = sparseop::try_zeroed(part.own_rows().len())?;
        part.apply(&sparseop::filled(part.own_columns().len(), T::ONE)?, &mut b)?;
        return Ok(b);
    };
    let (nrows, ncols) = part.shape();
    let b = market::read_vector_of::<T>(file, nrows)?;
    if b.len() != nrows {
        let (vector, expected, found) = ("b", nrows, b.len());
        return Err(sparseop::Error::VectorLength { vector, expected, found, nrows, ncols }.into());
    }
    Ok(b[part.own_rows()].to_vec())
}

/// Solves the system from zero, and shows the progress on a console.
fn run<T: Scalar>(
    args: &SolveArgs,
    name: Name,
    part: &PartOp<T>,
    b: &[T],
    console: Option<&Console>,
) -> Result<(Vec<T>, Report)> {
    let mut solver = SolverBuilder::new(method_of(args, name)).settings(settings(args));
    let mut bar = None;
    if let Some(console) = console {
        let (shown, observer) = spinner(args, console);
        solver = solver.progress(observer);
        bar = Some(shown);
    }
    if args.preconditioner == Preconditioner::Jacobi {
        solver = solver.jacobi(part.jacobi()?);
    }
    let mut x = sparseop::try_zeroed(part.own_rows().len())?;
    let report = part.solve(solver, b, &mut x);
    bar.inspect(indicatif::ProgressBar::finish_and_clear);
    Ok((x, report?))
}

/// Description of the operator.
fn text(explanation: &DistributedExplanation, of_rank: &Device) -> OpText {
    let nnz = explanation.parts.iter().map(|part| part.nnz).sum();
    let ([device, plan], ranks) = (describe(explanation), explanation.parts.len());
    let device = [of_rank.spec().name, device];
    OpText { nrows: explanation.shape.0, nnz, device, plan, ranks: Some(ranks) }
}
