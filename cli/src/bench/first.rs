//! `sparseop bench --first`: time from the start of a process to its first product.
//!
//! Every measurement runs in a process of its own: the same command with the variable [`CHILD`]. It
//! prints two lines of JSON, the times of its first product and those of a second operator.

use super::BenchArgs;
use crate::choice::ChoiceArgs;
use crate::console::{Console, Left, Right, duration, table};
use crate::matrix_arg::MatrixSource;
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use sparseop::device::{ForeignCsr, KernelOrigin, Offsets, kernel_log};
use sparseop::matrix::CsrMatrix;
use sparseop::tuning::stopwatch::timed;
use sparseop::{Device, DeviceVec, Scalar, ScalarKind, SparseOp, SparseOpBuilder, Stream};
use sparseop_testkit::x_vector;
use std::cell::Cell;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{self, ChildStdout, Command, Stdio};
use std::time::Duration;
use std::{env, fs};

/// Environment variable of a measuring process: the number of the matrix, counted from 0.
const CHILD: &str = "SPARSEOP_BENCH_FIRST";

/// Environment variable of the folder of compiled kernels.
const CACHE: &str = "SPARSEOP_CACHE";

/// Environment variable: 1 keeps NVRTC and the driver from a cache of their own.
const CUDA_CACHE: &str = "CUDA_CACHE_DISABLE";

/// Number of processes with an empty folder of kernels, and with a filled one.
const EMPTY_RUNS: usize = 3;
const FILLED_RUNS: usize = 5;

/// Times to a first product in parts, in seconds: the line of a measuring process.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct FirstParts {
    plan: String,
    device: String,
    is_gpu: bool,
    shape: (usize, usize),
    nnz: usize,
    /// Opening the device: the start of CUDA on a GPU.
    open: f64,
    /// Reading or generating the matrix.
    read: f64,
    analyze: f64,
    select: f64,
    check: f64,
    pack: f64,
    upload: f64,
    /// Rest of the build.
    rest: f64,
    /// The first product, with the copies of vectors in host memory.
    product: f64,
    /// Loading kernels from the cache and compiling them, as a part of the times above.
    kernels: f64,
    /// Number of kernels, or modules of kernels, compiled.
    compiled: usize,
}

/// Times to a first product from one state: a column of the table.
#[derive(Debug, Serialize)]
struct FirstState {
    /// On a GPU `empty_cache`, `kernels_cached` or `on_device`; on the CPU `new` or `again`.
    state: &'static str,
    plan: String,
    /// Number of processes, of which the one with the median total is reported.
    runs: usize,
    /// Number of kernels, or modules of kernels, compiled.
    compiled: usize,
    total_us: f64,
    start_us: f64,
    open_us: f64,
    read_us: f64,
    analyze_us: f64,
    select_us: f64,
    check_us: f64,
    pack_us: f64,
    upload_us: f64,
    rest_us: f64,
    product_us: f64,
    kernels_us: f64,
}

/// Results of a matrix.
#[derive(Debug, Serialize)]
struct FirstReport {
    matrix: String,
    nrows: usize,
    ncols: usize,
    nnz: usize,
    dtype: ScalarKind,
    device: String,
    first: Vec<FirstState>,
}

/// Measures the matrix of this process, or starts processes that do.
pub(super) fn run(args: &BenchArgs, console: &Console) -> Result<()> {
    let measured = env::var(CHILD).ok().and_then(|text| text.parse::<usize>().ok());
    let count = Cell::new(0);
    args.matrices.for_each(console, |source| {
        let number = count.replace(count.get() + 1);
        match measured {
            None => {
                let report = report(args, source, number)?;
                if args.json {
                    return console.print_json(&report);
                }
                console.print(&report.table())
            }
            Some(measured) if measured != number => Ok(()),
            Some(_) => by_scalar!(args.choice.dtype, measure(&args.choice, source, console)),
        }
    })
}

/// Prints the parts of the first product of this process, then those of a second operator.
fn measure<T: Scalar>(choice: &ChoiceArgs, source: &MatrixSource, console: &Console) -> Result<()> {
    let (device, open) = timed(|| choice.device());
    let device = device?;
    let (a, read) = timed(|| source.load::<T>(console));
    let a = choice.rounded(a?)?;
    let builder = choice.builder()?;
    let mut y = sparseop::filled(a.nrows(), T::ZERO)?;
    sparseop::check_room(a.ncols().saturating_mul(size_of::<T>()))?;
    let x = x_vector::<T>(a.ncols());
    let mut from_host = || -> Result<_> {
        let loaded = kernel_log().len();
        let (op, build) = timed(|| builder.build(&a));
        let op = op?;
        let (done, product) = timed(|| op.apply(&x, &mut y));
        done?;
        Ok((parts(&a, &op, [build, product], loaded), op))
    };
    let (first, op) = from_host()?;
    console.print_json(&FirstParts { open, read, ..first })?;
    let second = if op.device() == &device && device != Device::Cpu {
        on_device(&builder, &device, &a, &x)?
    } else {
        from_host()?.0
    };
    console.print_json(&second)
}

/// Times of an operator of a matrix in the memory of the device, and of a product with vectors
/// there.
fn on_device<T: Scalar>(
    builder: &SparseOpBuilder,
    device: &Device,
    a: &CsrMatrix<T>,
    x: &[T],
) -> Result<FirstParts> {
    let (stream, builder) = (Stream::new(device)?, builder.clone().device(device.clone()));
    // Integers are copied as the numbers with the same bits.
    let on_device = |words: Vec<u32>| {
        DeviceVec::from_slice(device, &words.into_iter().map(f32::from_bits).collect::<Vec<_>>())
    };
    let halves = a.row_ptr().iter().flat_map(|&at| [at as u32, (at as u64 >> 32) as u32]);
    let (row_ptr, col_idx) = (on_device(halves.collect())?, on_device(a.col_idx().to_vec())?);
    let values = DeviceVec::from_slice(device, a.values())?;
    let (x, mut y) = (DeviceVec::from_slice(device, x)?, DeviceVec::zeros(device, a.nrows())?);
    let (shape, row_ptr) = ((a.nrows(), a.ncols()), Offsets::Bits64(row_ptr.address()));
    // SAFETY: arrays of this matrix, which live until the end of the function.
    let there = unsafe {
        ForeignCsr::from_raw(device, shape, a.nnz(), row_ptr, col_idx.address(), values.address())
    }?;
    let loaded = kernel_log().len();
    let (op, build) = timed(|| builder.build_from_device(&stream, &there));
    let op = op?;
    let (done, product) = timed(|| {
        op.apply_device(&stream, &x, &mut y)?;
        stream.synchronize()
    });
    done?;
    Ok(parts(a, &op, [build, product], loaded))
}

/// Parts of the time of an operator, whose build and first product took these seconds. The first
/// `loaded` kernels of the log are older than the operator.
fn parts<T: Scalar>(
    a: &CsrMatrix<T>,
    op: &SparseOp<T>,
    [build, product]: [f64; 2],
    loaded: usize,
) -> FirstParts {
    let (preparation, log) = (op.preparation(), kernel_log());
    let new = log.get(loaded..).unwrap_or(&[]);
    FirstParts {
        plan: op.plan().to_string(),
        device: op.device().spec().name,
        is_gpu: op.device() != &Device::Cpu,
        shape: (a.nrows(), a.ncols()),
        nnz: a.nnz(),
        analyze: preparation.analyze,
        select: preparation.select,
        check: preparation.check,
        pack: preparation.pack,
        upload: preparation.upload,
        rest: (build - preparation.total()).max(0.0),
        product,
        kernels: new.iter().map(|event| event.time).sum::<Duration>().as_secs_f64(),
        compiled: new.iter().filter(|event| event.origin == KernelOrigin::Compiled).count(),
        ..FirstParts::default()
    }
}

impl FirstParts {
    fn total(&self) -> f64 {
        let build = self.analyze + self.select + self.check + self.pack + self.upload + self.rest;
        self.open + self.read + build + self.product
    }
}

/// Results of a measuring process.
struct FirstRun {
    /// Seconds from the start of the process to its first product.
    seconds: f64,
    first: FirstParts,
    second: FirstParts,
}

/// Measures the matrix with this number in processes of its own.
fn report(args: &BenchArgs, source: &MatrixSource, number: usize) -> Result<FirstReport> {
    let filled = run_processes(FILLED_RUNS, number, |_| None)?;
    let FirstParts { is_gpu, shape: (nrows, ncols), nnz, device, .. } = filled[0].first.clone();
    let mut first = Vec::new();
    if is_gpu {
        let folder = |run| env::temp_dir().join(format!("sparseop-{}-{run}", process::id()));
        let empty = run_processes(EMPTY_RUNS, number, |run| Some(folder(run)))?;
        first.push(FirstState::of_processes("empty_cache", &empty));
    }
    let names = if is_gpu { ["kernels_cached", "on_device"] } else { ["new", "again"] };
    first.push(FirstState::of_processes(names[0], &filled));
    first.push(FirstState::of_second(names[1], &filled));
    let (matrix, dtype) = (source.name(), args.choice.dtype);
    Ok(FirstReport { matrix, nrows, ncols, nnz, dtype, device, first })
}

/// Runs measuring processes. `folder` names an empty folder of kernels for each, or none for the
/// usual folder.
fn run_processes(
    count: usize,
    number: usize,
    folder: impl Fn(usize) -> Option<PathBuf>,
) -> Result<Vec<FirstRun>> {
    let program = env::current_exe().context("cannot find this program to run it again")?;
    let measure = |run| {
        let mut command = Command::new(&program);
        command.args(env::args_os().skip(1)).env(CHILD, number.to_string());
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let folder = folder(run);
        if let Some(folder) = &folder {
            command.env(CACHE, folder).env(CUDA_CACHE, "1");
        }
        let result = run_process(command);
        if let Some(folder) = folder {
            // If it stays, the system removes it with its other temporary files.
            let _ = fs::remove_dir_all(folder);
        }
        result
    };
    (0..count).map(measure).collect()
}

/// Runs a process and reads its two lines.
fn run_process(mut command: Command) -> Result<FirstRun> {
    type Lines = std::io::Lines<BufReader<ChildStdout>>;
    fn next(lines: &mut Lines) -> Result<FirstParts> {
        let line = lines.next().context("a measuring process has failed")??;
        Ok(serde_json::from_str(&line)?)
    }
    let (started, seconds) = timed(|| -> Result<_> {
        let mut child = command.spawn().context("cannot run this program again")?;
        let mut lines = BufReader::new(child.stdout.take().context("it has no output")?).lines();
        let first = next(&mut lines);
        Ok((child, lines, first))
    });
    let (mut child, mut lines, first) = started?;
    let second = next(&mut lines);
    child.wait()?;
    Ok(FirstRun { seconds, first: first?, second: second? })
}

impl FirstState {
    /// The first product of the median process.
    fn of_processes(state: &'static str, runs: &[FirstRun]) -> Self {
        Self::median(state, runs.iter().map(|run| (run.seconds, &run.first)).collect())
    }

    /// The second operator of the median process.
    fn of_second(state: &'static str, runs: &[FirstRun]) -> Self {
        Self::median(state, runs.iter().map(|run| (run.second.total(), &run.second)).collect())
    }

    fn median(state: &'static str, mut runs: Vec<(f64, &FirstParts)>) -> Self {
        runs.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (total, parts) = runs[runs.len() / 2];
        let us = |seconds: f64| seconds * 1e6;
        Self {
            state,
            plan: parts.plan.clone(),
            runs: runs.len(),
            compiled: parts.compiled,
            total_us: us(total),
            start_us: us((total - parts.total()).max(0.0)),
            open_us: us(parts.open),
            read_us: us(parts.read),
            analyze_us: us(parts.analyze),
            select_us: us(parts.select),
            check_us: us(parts.check),
            pack_us: us(parts.pack),
            upload_us: us(parts.upload),
            rest_us: us(parts.rest),
            product_us: us(parts.product),
            kernels_us: us(parts.kernels),
        }
    }

    /// Times of the parts, in the order of the rows of [`FirstReport::table`].
    fn parts(&self) -> [f64; 12] {
        [
            self.total_us,
            self.start_us,
            self.open_us,
            self.read_us,
            self.analyze_us,
            self.select_us,
            self.check_us,
            self.pack_us,
            self.upload_us,
            self.rest_us,
            self.product_us,
            self.kernels_us,
        ]
    }

    fn title(&self) -> &'static str {
        match self.state {
            "empty_cache" => "new process, no kernels",
            "kernels_cached" => "new process, kernels cached",
            "on_device" => "matrix on the GPU",
            "new" => "new process",
            _ => "second operator",
        }
    }
}

impl FirstReport {
    /// A column for each state and a row for each part.
    fn table(&self) -> String {
        const PARTS: [&str; 12] = [
            "time to the first product",
            "  start of the process",
            "  start of the device",
            "  reading the matrix",
            "  analysis",
            "  choice",
            "  check",
            "  packing",
            "  copy to the device",
            "  rest of the build",
            "  product, from and to host memory",
            "of this, kernels",
        ];
        let Self { matrix, nrows, ncols, nnz, dtype, device, first } = self;
        let mut columns = vec![("", Left)];
        columns.extend(first.iter().map(|state| (state.title(), Right)));
        let rows = PARTS.iter().enumerate().map(|(k, part)| {
            let times = first.iter().map(|state| match state.parts()[k] {
                us if us < 0.05 => String::new(),
                us => duration(us * 1e-6),
            });
            std::iter::once((*part).to_owned()).chain(times).collect()
        });
        let compiled = std::iter::once("kernels compiled".to_owned())
            .chain(first.iter().map(|state| state.compiled.to_string()));
        let plans =
            std::iter::once("plan".to_owned()).chain(first.iter().map(|state| state.plan.clone()));
        let rows = rows.chain([compiled.collect(), plans.collect()]);
        let table = table(&columns, rows);
        format!(
            "{matrix}: {nrows} x {ncols}, {nnz} entries in {dtype}, on {device}; medians of new \
             processes\n{table}"
        )
    }
}
