//! A program of MPI ranks, which `scripts/mpi-tests` runs: bits of products and solutions, and
//! failures. `time MATRIX` prints the time of an iteration of CG. Started without a command, as by
//! `cargo test`, it does nothing.

mod common;

use common::{bits, gallery};
use sparseop::{Device, Error, Multivector, Scalar};
use sparseop_distributed::{
    Balance, Communicator, DistributedBuilder, Link, MpiRank, PartOp, Partition, gpu_of_rank,
};
use sparseop_solvers::{Method, Settings, SolverBuilder, link_matrix};
use sparseop_testkit::x_vector;
use std::error::Error as StdError;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time limit of the waits of ranks that do not fail.
const LIMIT: Duration = Duration::from_secs(60);

type Done = Result<(), Box<dyn StdError>>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let text: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match text[..] {
        ["bits", matrix, out] => product_bits(matrix, out),
        ["fail", how, seconds] => failing(how, seconds.parse().unwrap()),
        ["time", matrix] => time(matrix),
        _ => Ok(()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The part of this rank: of a file, by predicted time, or of a generated matrix. On a GPU with
/// `SPARSEOP_RANK_GPUS=1`, and with `SPARSEOP_RANK_GPUS=nccl` by NCCL.
fn part<T: Scalar>(comm: &Arc<MpiRank>, matrix: &str, limit: Duration) -> Result<PartOp<T>, Error> {
    let device = if on_gpus() { gpu_of_rank(&**comm)? } else { Device::Cpu };
    let builder = DistributedBuilder::new(comm.size()).rank_device(device).time_limit(limit);
    let builder = builder.nccl(rank_gpus().is_some_and(|how| how == "nccl"));
    let Some(spec) = matrix.strip_prefix("gallery:") else {
        return builder.balance(Balance::PredictedTime).read_part(comm.clone(), matrix);
    };
    let a = match spec.strip_prefix("links:") {
        None => gallery::<T>(spec),
        Some(spec) => link_matrix(gallery::<T>(spec).view())?,
    };
    builder.build_part_of(comm.clone(), &a)
}

fn rank_gpus() -> Option<String> {
    std::env::var("SPARSEOP_RANK_GPUS").ok()
}

fn on_gpus() -> bool {
    rank_gpus().is_some()
}

/// Writes the bits of all products and solutions, in the order of the ranks, one line each.
fn product_bits(matrix: &str, out: &str) -> Done {
    let comm = MpiRank::world(LIMIT)?;
    let mut lines = Vec::new();
    results::<f64>(&comm, matrix, &mut lines)?;
    results::<f32>(&comm, matrix, &mut lines)?;
    // Each rank has its share of each line.
    let own = lines.join("\n").into_bytes();
    let length = (own.len() as u64).to_ne_bytes();
    let lengths = comm.all_gather(&length, &vec![8; comm.size()])?;
    let lengths: Vec<usize> =
        lengths.chunks(8).map(|n| u64::from_ne_bytes(n.try_into().unwrap()) as usize).collect();
    let all = String::from_utf8(comm.all_gather(&own, &lengths)?)?;
    if comm.rank() == 0 {
        let mut shares: Vec<Vec<&str>> = Vec::new();
        let mut rest = &all[..];
        for length in lengths {
            shares.push(rest[..length].split('\n').collect());
            rest = &rest[length..];
        }
        let mut file = std::fs::File::create(out)?;
        for at in 0..shares[0].len() {
            let line: Vec<&str> = shares.iter().map(|share| share[at]).collect();
            writeln!(file, "{}", line.concat())?;
        }
    }
    Ok(())
}

fn results<T: Scalar>(comm: &Arc<MpiRank>, matrix: &str, lines: &mut Vec<String>) -> Done {
    let mut op = part::<T>(comm, matrix, LIMIT)?;
    let words = |y: &[T]| bits(y).iter().map(|word| format!("{word:x} ")).collect::<String>();
    let (nrows, ncols) = op.shape();
    let (rows, columns) = (op.own_rows(), op.own_columns());
    let (x, across) = (x_vector::<T>(ncols), x_vector::<T>(nrows));
    let (x, across) = (&x[columns.clone()], &across[rows.clone()]);
    let (mut y, mut back) = (vec![T::ZERO; rows.len()], vec![T::ZERO; columns.len()]);
    op.apply(x, &mut y)?;
    lines.push(words(&y));
    op.apply_transpose(across, &mut back)?;
    lines.push(words(&back));
    let wide: Vec<T> = x.iter().flat_map(|x| [*x, *x + T::ONE, -*x]).collect();
    let mut several = vec![T::ZERO; 3 * rows.len()];
    op.apply_multi(Multivector::row_major(&wide, 3), Multivector::row_major(&mut several, 3))?;
    if on_gpus() {
        // The kernel of several vectors is chosen by the rows of a rank.
        let first = several.chunks(3).zip(&y).map(|(row, y)| (row[0], *y));
        assert!(first.into_iter().all(|(a, b)| {
            (a.to_f64() - b.to_f64()).abs() <= T::EPSILON * 1e3 * (1.0 + b.to_f64().abs())
        }));
    } else {
        lines.push(words(&several));
    }
    if comm.rank() == 0 {
        eprintln!("{}", op.explain(Link::MEMORY)?);
    } else {
        op.explain(Link::MEMORY)?;
    }
    if matrix.contains("links") {
        let ranking = op.rank_pages(0.85, Settings { tolerance: 1e-5, ..Settings::default() })?;
        lines.push(words(&ranking.converged()?.ranks));
    }
    if matrix.contains("laplacian") {
        let tolerance = T::EPSILON.sqrt() * 0.1;
        for method in
            [Method::Cg, Method::SingleReductionCg, Method::BiCgStab, Method::Gmres { restart: 20 }]
        {
            let settings = Settings { tolerance, ..Settings::default() };
            let solver = SolverBuilder::new(method).settings(settings).jacobi(op.jacobi()?);
            let mut solution = vec![T::ZERO; rows.len()];
            let report = op.solve(solver, &y, &mut solution)?.converged()?;
            if comm.rank() == 0 {
                eprintln!("{report}");
            }
            lines.push(words(&solution));
        }
    }
    let doubled: Vec<T> = op.to_csr()?.values().iter().map(|value| *value + *value).collect();
    op.update_values(&doubled)?;
    op.apply(x, &mut y)?;
    lines.push(words(&y));
    Ok(())
}

/// Prints the explanation of an operator, and the least time of an iteration in five solves.
fn time(matrix: &str) -> Done {
    let comm = MpiRank::world(LIMIT)?;
    let op = part::<f64>(&comm, matrix, LIMIT)?;
    let explanation = op.explain(op.link())?;
    let settings = Settings { tolerance: 1e-300, max_iterations: 1024, ..Settings::default() };
    let (b, mut x) = (vec![1.0; op.own_rows().len()], vec![0.0; op.own_rows().len()]);
    let mut least = f64::INFINITY;
    for _ in 0..5 {
        x.fill(0.0);
        let report = op.solve(SolverBuilder::new(Method::Cg).settings(settings), &b, &mut x)?;
        least = least.min(report.seconds / report.iterations.max(1) as f64);
    }
    if comm.rank() == 0 {
        print!("{explanation}");
        println!("{matrix}: {:.1} µs for an iteration of CG", least * 1e6);
    }
    Ok(())
}

/// Fails in a given way, and succeeds at every rank that finds out within the time limit.
fn failing(how: &str, seconds: f64) -> Done {
    let limit = Duration::from_secs_f64(seconds);
    let comm = MpiRank::world(limit)?;
    let rank = comm.rank();
    let begin = Instant::now();
    let error = match fails(&comm, how, limit) {
        Ok(()) => return Err(format!("rank {rank} noticed nothing").into()),
        Err(error) => error,
    };
    if begin.elapsed() > limit + Duration::from_secs(8) {
        return Err(format!("rank {rank} noticed after {:?}", begin.elapsed()).into());
    }
    println!("rank {rank} ends: {error}");
    std::io::stdout().flush()?;
    // MPI would wait for the rank that has ended.
    drop(comm);
    std::process::exit(0);
}

fn fails(comm: &Arc<MpiRank>, how: &str, limit: Duration) -> Result<(), Error> {
    let last = comm.rank() == comm.size() - 1;
    if how == "differ" {
        let spec = if last { "gallery:poisson2d,n=30" } else { "gallery:poisson2d,n=31" };
        return part::<f64>(comm, spec, limit).map(|_| ());
    }
    if how == "types" {
        return match last {
            true => part::<f32>(comm, "gallery:poisson2d,n=30", limit).map(|_| ()),
            false => part::<f64>(comm, "gallery:poisson2d,n=30", limit).map(|_| ()),
        };
    }
    if how == "memory" {
        let builder = sparseop::SparseOpBuilder::new();
        let builder = if last { builder.memory_limit(64) } else { builder };
        let a = gallery::<f64>("poisson2d,n=30");
        let before = |row: usize| row as u64;
        let partition = Partition::balanced(a.nrows(), comm.size(), before)?;
        let rows = partition.rows(comm.rank());
        let own = sparseop::CsrMatrix::try_new(
            rows.len(),
            a.ncols(),
            (0..=rows.len()).collect(),
            rows.clone().map(|row| row as u32).collect(),
            vec![1.0; rows.len()],
        )?;
        let builder = DistributedBuilder::new(comm.size()).operator(builder);
        return builder.build_part(comm.clone(), &partition, own.view()).map(|_| ());
    }
    let op = part::<f64>(comm, "gallery:poisson2d,n=200,values=laplacian", limit)?;
    let own = op.own_rows().len();
    let (b, mut x) = (vec![1.0; own], vec![0.0; own]);
    if how == "finite" {
        let b = vec![if last { f64::NAN } else { 1.0 }; own];
        return op.solve(SolverBuilder::new(Method::Cg), &b, &mut x).map(|_| ());
    }
    if how == "settings" {
        let tolerance = if last { 1e-5 } else { 1e-6 };
        let settings = Settings { tolerance, ..Settings::default() };
        let solver = SolverBuilder::new(Method::Cg).settings(settings);
        return op.solve(solver, &b, &mut x).map(|_| ());
    }
    if how == "leave" && last {
        // As after an error that is no business of the other ranks.
        return Err(Error::Communication { message: "it leaves".to_owned() });
    }
    if how == "length" && last {
        return op.apply(&b[1..], &mut x);
    }
    if how == "vectors" {
        let count = if last { 2 } else { 3 };
        let (x, mut y) = (vec![1.0; count * own], vec![0.0; count * own]);
        let to = Multivector::row_major(&mut y[..], count);
        return op.apply_multi(Multivector::row_major(&x[..], count), to);
    }
    let begin = Instant::now();
    if how == "kill-in-solver" && last {
        let rank = comm.rank();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            end_at_once(rank);
        });
    }
    loop {
        op.apply(&b, &mut x)?;
        if how == "kill" && last && begin.elapsed() > Duration::from_millis(300) {
            end_at_once(comm.rank());
        }
        if how == "kill-in-solver" {
            let settings = Settings { tolerance: 1e-14, ..Settings::default() };
            let solver = SolverBuilder::new(Method::Cg).settings(settings);
            x.fill(0.0);
            op.solve(solver, &b, &mut x)?;
        }
    }
}

/// Ends this process by SIGKILL, as the kernel does without memory.
fn end_at_once(rank: usize) {
    println!("rank {rank} is killed");
    std::io::stdout().flush().unwrap();
    let own = std::process::id().to_string();
    std::process::Command::new("kill").args(["-9", &own]).status().unwrap();
}
