//! The formats by the five criteria of Kirk & Hwu, measured on one matrix on the CPU: the table of
//! `benches/README.md`.
//!
//! ```text
//! cargo run --release --example criteria                           # gallery:webbase,rows=100k
//! cargo run --release --example criteria -- gallery:stencil27,n=40
//! ```

use sparseop::analysis::Analysis;
use sparseop::matrix::{CsrMatrix, gallery};
use sparseop::{Device, Error, Plan, ScalarKind, SparseOp, SparseOpBuilder, Tuning};
use std::time::Instant;

/// The compared plans: one of every format.
const PLANS: [&str; 10] = [
    "coo",
    "csr(balanced)",
    "ell",
    "sell(c:32,sigma:512)",
    "psell(sigma:512)",
    "dia",
    "jds",
    "hyb(width:auto)",
    "tiles",
    "blocked(kib:32)",
];

/// Runs some work. Returns its result and its seconds.
fn timed<R>(work: impl FnOnce() -> R) -> (R, f64) {
    let start = Instant::now();
    let result = work();
    (result, start.elapsed().as_secs_f64())
}

/// Number of repetitions of slow operations, and of fast ones.
const FEW: usize = 10;
const MANY: usize = 1000;

/// Nanoseconds of one of `times` calls with numbers spread over `0..bound`. None if a call is
/// refused.
fn each(
    times: usize,
    bound: usize,
    mut call: impl FnMut(usize) -> Result<(), Error>,
) -> Option<f64> {
    let spread = |i: usize| (i.wrapping_mul(0x9e37_79b9) ^ (i << 7)) % bound.max(1);
    let (done, seconds) = timed(|| (0..times).try_for_each(|i| call(spread(i))));
    done.ok().map(|()| seconds / times as f64 * 1e9)
}

/// Text of a time in a cell.
fn cell(nanoseconds: Option<f64>) -> String {
    match nanoseconds {
        None => "no".to_owned(),
        Some(ns) if ns < 1e3 => format!("{ns:.0} ns"),
        Some(ns) if ns < 1e6 => format!("{:.1} µs", ns / 1e3),
        Some(ns) => format!("{:.1} ms", ns / 1e6),
    }
}

/// Seconds of the fastest of `FEW` products.
fn product(op: &SparseOp<f64>) -> Result<f64, Error> {
    let (x, mut y) = (vec![1.0; op.ncols()], op.zeros_y());
    let mut fastest = f64::INFINITY;
    for _ in 0..FEW {
        let (done, seconds) = timed(|| op.apply(&x, &mut y));
        done?;
        fastest = fastest.min(seconds);
    }
    Ok(fastest)
}

/// Line of the table for a plan.
fn line(text: &str, a: &CsrMatrix<f64>, analysis: &Analysis) -> Result<String, Error> {
    let plan: Plan = text.parse()?;
    let work = plan.work(analysis, ScalarKind::F64);
    let builder = SparseOpBuilder::new().device(Device::Cpu).tuning(Tuning::Fixed(plan));
    let mut op = match builder.build(a) {
        Err(Error::MemoryLimit { needed, .. }) => {
            let bytes = needed as f64 / a.nnz() as f64;
            return Ok(format!("| {text} | {bytes:.0}, too much | | | | | |"));
        }
        Err(Error::PlanLimit { .. }) => {
            return Ok(format!("| {text} | refused for this matrix | | | | | |"));
        }
        built => built?,
    };
    let seconds = product(&op)?;
    let space = op.memory_bytes() as f64 / a.nnz() as f64;
    let row = each(MANY, a.nrows(), |row| op.row(row).map(drop));
    let slots = op.slots().unwrap_or(0);
    let position = each(MANY, slots, |slot| op.position(slot).map(drop));
    // Share of the slots in the largest unit of work, which threads cannot share.
    let alone = work.serial_slots as f64 / work.slots.max(1) as f64;
    let speed = (op.memory_bytes() + work.vector_bytes) as f64 / seconds / 1e9;
    // Number of successful insertions of new entries.
    let mut room = 0;
    let tried = timed(|| {
        for i in 0..MANY {
            let (row, col) = (i * 7919 % a.nrows(), i * 104_729 % a.ncols());
            match op.insert(row, col, 1.0) {
                Ok(None) => room += 1,
                // The entry was there.
                Ok(Some(_)) => {}
                Err(Error::NoRoom { .. } | Error::NoAccess { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    });
    tried.0?;
    let insert = (room > 0).then_some(tried.1 / MANY as f64 * 1e9);
    Ok(format!(
        "| {text} | {space:.1} | {}, {} % | {} | {} | {speed:.1} GB/s, {:.0} µs | {:.2} % |",
        cell(insert),
        room * 100 / MANY,
        cell(row),
        cell(position),
        seconds * 1e6,
        alone * 100.0
    ))
}

fn main() -> Result<(), Error> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "gallery:webbase,rows=100k".to_owned());
    let a = name.trim_start_matches("gallery:").parse::<gallery::Spec>()?.generate::<f64>()?;
    let analysis = Analysis::of(a.view());
    println!("{name}: {} x {} with {} entries, f64\n", a.nrows(), a.ncols(), a.nnz());
    println!(
        "| plan | bytes an entry | insert, found room | a row | (row, column) of a slot | product \
         | largest unit of work |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    for text in PLANS {
        println!("{}", line(text, &a, &analysis)?);
    }
    Ok(())
}
