//! Passes on the CPU. Tasks depend on the length alone, so sums have the same bits for any number
//! of threads.

use super::{Coefficient, Combine, Dots, Partner, SharedSums, Step};
use crate::device::DeviceVec;
use crate::device::cpu::{Output, for_each_task, partition};
use crate::{Error, Scalar};
use std::ops::Range;
use std::sync::Arc;

/// Elements that a whole pass processes while they are in the L1 cache.
const BATCH: usize = 512;

/// Number of partial sums computed side by side, so that the compiler uses SIMD.
const LANES: usize = 8;

/// Alignment of tasks in elements: whole cache lines.
const ALIGN: usize = 64;

/// State of passes on the CPU.
#[derive(Debug, Default)]
pub(super) struct HostPasses {
    len: usize,
    tasks: Box<[usize]>,
    /// Sums of the blocks: of the tasks, or smaller ones if sums are shared.
    sums: Vec<[f64; 2]>,
    shared: Option<Arc<dyn SharedSums>>,
}

/// Blocks of the elements, whose sums are stored: the tasks, or smaller ones.
struct SumBlocks<'a> {
    tasks: &'a [usize],
    block: Option<usize>,
    sums: Output<[f64; 2]>,
}

impl SumBlocks<'_> {
    /// Calls `batch` for the batches of a task, and adds their sums block by block.
    #[inline(always)]
    fn each(&self, range: Range<usize>, mut batch: impl FnMut(Range<usize>) -> [f64; 2]) {
        let (mut start, mut sums) = (range.start, [0.0; 2]);
        while start < range.end {
            let block_end = match self.block {
                None => range.end,
                Some(block) => (start / block + 1).saturating_mul(block).min(range.end),
            };
            let end = (start + BATCH).min(block_end);
            let [a, b] = batch(start..end);
            sums = [sums[0] + a, sums[1] + b];
            if end == block_end {
                let index = match self.block {
                    None => self.tasks.partition_point(|&task| task <= start) - 1,
                    Some(block) => start / block,
                };
                // SAFETY: there is one element for each block, and each block is in one task.
                unsafe { self.sums.set(index, sums) };
                sums = [0.0; 2];
            }
            start = end;
        }
    }
}

/// Elements of a vector, if any.
type Elements<'a, T> = Option<&'a [T]>;

impl HostPasses {
    /// Runs `body` for every task; [`total`](Self::total) is then that of the sums of all blocks.
    fn pass(&mut self, len: usize, body: impl Fn(Range<usize>, &SumBlocks<'_>) + Sync) {
        let block = self.shared.as_ref().map(|shared| shared.block().max(1));
        if self.tasks.is_empty() || self.len != len {
            let align = block.map_or(ALIGN, |block| ALIGN.next_multiple_of(block));
            self.tasks = partition(len, align, |i| i as u64);
            self.len = len;
            let blocks = block.map_or(self.tasks.len() - 1, |block| len.div_ceil(block));
            self.sums = vec![[0.0; 2]; blocks];
        }
        let blocks = SumBlocks { tasks: &self.tasks, block, sums: Output::new(&mut self.sums) };
        for_each_task(&self.tasks, |range| body(range, &blocks));
    }

    /// Sums of the last pass: over all blocks in their order, or shared.
    pub(super) fn total(&self) -> Result<[f64; 2], Error> {
        match &self.shared {
            None => Ok(self.sums.iter().fold([0.0; 2], |[a, b], [c, d]| [a + c, b + d])),
            Some(shared) => shared.total(&self.sums),
        }
    }

    /// Shares the sums of later passes.
    pub(super) fn share(&mut self, sums: Arc<dyn SharedSums>) {
        *self = Self { shared: Some(sums), ..Self::default() };
    }

    pub(super) fn dots<T: Scalar>(&mut self, pass: &Dots<'_, T>) {
        let a = pass.of.host();
        let (b, c) = (host(pass.with), host(pass.and));
        self.pass(a.len(), |range, blocks| {
            blocks.each(range, |at| {
                let a = &a[at.clone()];
                let first = b.map_or_else(|| sum(a, a, |a, _| a), |b| dot(a, &b[at.clone()]));
                [first, c.map_or(0.0, |c| dot(a, &c[at]))]
            });
        });
    }

    pub(super) fn combine<T: Scalar>(
        &mut self,
        y: &mut DeviceVec<T>,
        pass: &Combine<'_, T>,
        registers: &[f64],
    ) {
        let value = |coefficient: Coefficient| T::from_f64(coefficient.of(registers));
        let (u, v) = (pass.add, pass.and);
        let u = u.map(|(coefficient, u)| (value(coefficient), u.host()));
        let v = v.map(|(coefficient, v)| (value(coefficient), v.host()));
        let keep = pass.keep.map(value);
        let (diagonal, other) = (host(pass.diagonal), host(pass.with));
        let len = y.len();
        let y = Output::new(y.host_mut());
        self.pass(len, |range, blocks| {
            let mut result = [T::ZERO; BATCH];
            blocks.each(range, |at| {
                // SAFETY: the tasks are disjoint, and so are the batches of a task.
                let y = unsafe { std::slice::from_raw_parts_mut(y.at(at.start), at.len()) };
                let result = &mut result[..at.len()];
                match keep {
                    None => result.fill(T::ZERO),
                    Some(keep) => result.iter_mut().zip(&*y).for_each(|(out, y)| *out = keep * *y),
                }
                if let Some((with, u)) = u {
                    add_scaled(
                        result,
                        with,
                        &u[at.clone()],
                        diagonal.filter(|_| pass.scaled).map(|d| &d[at.clone()]),
                    );
                }
                if let Some((with, v)) = v {
                    add_scaled(result, with, &v[at.clone()], None);
                }
                let sums = pass.sums.map(|partner| {
                    share(
                        partner,
                        result,
                        y,
                        other.map(|w| &w[at.clone()]),
                        diagonal.map(|d| &d[at.clone()]),
                    )
                });
                y.copy_from_slice(result);
                sums
            });
        });
    }

    pub(super) fn step<T: Scalar>(
        &mut self,
        x: &mut DeviceVec<T>,
        p: &mut DeviceVec<T>,
        pass: &Step<'_, T>,
        registers: &[f64],
    ) {
        let value = |coefficient: Coefficient| T::from_f64(coefficient.of(registers));
        let (along, with, keep) = (value(pass.along), value(pass.with), value(pass.keep));
        let (r, diagonal, len) = (pass.r.host(), host(pass.diagonal), x.len());
        let (x, p) = (Output::new(x.host_mut()), Output::new(p.host_mut()));
        self.pass(len, |range, _| {
            for at in batches(range) {
                // SAFETY: as in `combine`, for two vectors that are borrowed exclusively.
                let (x, p) = unsafe {
                    let start = at.start;
                    (
                        std::slice::from_raw_parts_mut(x.at(start), at.len()),
                        std::slice::from_raw_parts_mut(p.at(start), at.len()),
                    )
                };
                let r = &r[at.clone()];
                x.iter_mut().zip(&*p).for_each(|(x, p)| *x += along * *p);
                match diagonal {
                    None => p.iter_mut().zip(r).for_each(|(p, r)| *p = with * *r + keep * *p),
                    Some(d) => {
                        p.iter_mut()
                            .zip(r)
                            .zip(&d[at])
                            .for_each(|((p, r), d)| *p = with * (*d * *r) + keep * *p);
                    }
                }
            }
        });
    }
}

fn host<'a, T: Scalar>(vector: Option<&'a DeviceVec<T>>) -> Elements<'a, T> {
    vector.map(DeviceVec::host)
}

/// Cuts a range into batches.
fn batches(range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    range.clone().step_by(BATCH).map(move |start| start..(start + BATCH).min(range.end))
}

/// `result += with · (diagonal ∘ u)`
fn add_scaled<T: Scalar>(result: &mut [T], with: T, u: &[T], diagonal: Elements<'_, T>) {
    match diagonal {
        None => result.iter_mut().zip(u).for_each(|(out, u)| *out += with * *u),
        Some(d) => {
            result.iter_mut().zip(u).zip(d).for_each(|((out, u), d)| *out += with * (*d * *u))
        }
    }
}

/// Contribution of a batch of the result to a sum. `before` is the previous content.
fn share<T: Scalar>(
    partner: Partner,
    out: &[T],
    before: &[T],
    other: Elements<'_, T>,
    diagonal: Elements<'_, T>,
) -> f64 {
    match partner {
        Partner::Absent => 0.0,
        Partner::Itself => dot(out, out),
        Partner::Other => other.map_or(0.0, |other| dot(out, other)),
        Partner::Scaled => diagonal.map_or(0.0, |d| sum(out, d, |out, d| d * out * out)),
        Partner::Change => sum(out, before, |out, before| (out - before).abs()),
    }
}

fn dot<T: Scalar>(a: &[T], b: &[T]) -> f64 {
    sum(a, b, |a, b| a * b)
}

/// Σ `term(aᵢ, bᵢ)` in 64 bits, in a fixed order of its own.
#[inline(always)]
fn sum<T: Scalar>(a: &[T], b: &[T], term: impl Fn(f64, f64) -> f64) -> f64 {
    let (whole_a, rest_a) = a.as_chunks::<LANES>();
    let (whole_b, rest_b) = b.as_chunks::<LANES>();
    let mut lanes = [0.0; LANES];
    for (a, b) in whole_a.iter().zip(whole_b) {
        for lane in 0..LANES {
            lanes[lane] += term(a[lane].to_f64(), b[lane].to_f64());
        }
    }
    for (lane, (a, b)) in lanes.iter_mut().zip(rest_a.iter().zip(rest_b)) {
        *lane += term(a.to_f64(), b.to_f64());
    }
    lanes.iter().sum()
}
