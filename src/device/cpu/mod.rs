//! Code shared by all CPU kernels: SIMD vectors, and the partition of work for the threads.

mod raw;
mod simd;
mod strip;
mod sync;
mod team;
mod threads;

pub(crate) use raw::{element, element_at, read, write};
#[cfg(target_arch = "x86_64")]
pub(crate) use simd::has_avx2;
pub(crate) use simd::{CpuKernel, PADDING, Vector, dispatch, prefetch, set_lanes, widened};
pub(crate) use strip::{Slots, strip};
pub use threads::prepare_threads;

use crate::{Scalar, parallel};
use std::cell::Cell;
use std::ops::{AddAssign, Range};
use std::sync::{Mutex, PoisonError};

/// Work of one task, in entries or slots: 3 to 5 µs, short enough for another thread to take over
/// tasks of a thread that starts late. Under Miri small matrices have several tasks, too.
const TASK_WORK: u64 = if cfg!(miri) { 128 } else { 8192 };

/// Work below which a single thread does everything, because sharing costs more than it saves.
/// Measured on Zen 4: 18,000 entries gain a third, and waking a sleeping thread takes about 5 µs.
const SHARED_WORK: u64 = 2 * TASK_WORK;

/// Largest number of tasks. More only add overhead; this is enough to balance a machine of 64
/// cores.
pub(crate) const MAX_TASKS: usize = 256;

/// Number of tasks for `work` entries or slots.
pub(crate) fn task_count(work: u64) -> u64 {
    if work < SHARED_WORK { 1 } else { (work / TASK_WORK).min(MAX_TASKS as u64) }
}

/// Ratio of the time that `threads` threads take for `work` to the time they would take if all were
/// busy to the end. It may exceed 1, because a task is not shared among threads.
pub(crate) fn unsharable(work: u64, threads: usize) -> f64 {
    let (tasks, threads) = (task_count(work), threads.max(1) as u64);
    (tasks.div_ceil(threads) * threads) as f64 / tasks as f64
}

/// Cuts `items` into tasks, consecutive items of about equal work, at multiples of `align`. Returns
/// the bounds of the tasks.
///
/// `work_before(i)` is the work of the first `i` items and must not decrease. The cut depends on
/// the matrix alone, never on the number of threads, so sums across tasks have the same bits on
/// every machine.
pub(crate) fn partition(
    items: usize,
    align: usize,
    work_before: impl Fn(usize) -> u64,
) -> Box<[usize]> {
    partition_by(items, align, &work_before)
}

/// As [`partition`], compiled one time.
fn partition_by(items: usize, align: usize, work_before: &dyn Fn(usize) -> u64) -> Box<[usize]> {
    let total = work_before(items);
    let tasks = task_count(total);
    let mut bounds = vec![0];
    for task in 1..tasks {
        // u128: work × tasks may pass 2⁶⁴ for the largest matrices.
        let target = (u128::from(total) * u128::from(task) / u128::from(tasks)) as u64;
        let at = first_at_least(items, target, work_before).next_multiple_of(align).min(items);
        if at > bounds[bounds.len() - 1] {
            bounds.push(at);
        }
    }
    if bounds[bounds.len() - 1] < items || bounds.len() == 1 {
        bounds.push(items);
    }
    bounds.into()
}

/// Returns the smallest `i <= items` with `work_before(i) >= target`.
pub(crate) fn first_at_least(
    items: usize,
    target: u64,
    work_before: impl Fn(usize) -> u64,
) -> usize {
    let (mut low, mut high) = (0, items);
    while low < high {
        let mid = low + (high - low) / 2;
        if work_before(mid) < target { low = mid + 1 } else { high = mid }
    }
    low
}

/// Returns the last of the numbers `items` whose key is at most `target`, the first one if there is
/// none. Keys ascend.
pub(crate) fn last_at_most<K: PartialOrd>(
    items: Range<usize>,
    target: K,
    key: impl Fn(usize) -> K,
) -> usize {
    let (mut last, mut end) = (items.start, items.end);
    while end - last > 1 {
        let middle = usize::midpoint(last, end);
        if key(middle) <= target { last = middle } else { end = middle }
    }
    last
}

/// Runs `body(range)` for every task of a [`partition`], in parallel if there are several.
pub(crate) fn for_each_task(tasks: &[usize], body: impl Fn(Range<usize>) + Sync) {
    for_each(tasks.len() - 1, &|i| body(tasks[i]..tasks[i + 1]));
}

/// Runs all tasks, in parallel.
pub(crate) fn run_all<const N: usize>(tasks: [&mut (dyn FnMut() + Send); N]) {
    let tasks = tasks.map(Mutex::new);
    for_each(N, &|i| {
        // Each mutex is locked once.
        tasks[i].lock().unwrap_or_else(PoisonError::into_inner)();
    });
}

/// Runs `task(i)` for every number below `count`, in parallel if there are several.
///
/// Inside a rayon pool the threads of the pool run them; elsewhere the caller and a team with as
/// many threads as rayon's pool. In a child of `fork` the caller is alone.
/// [Without pools](without_pools) the caller is alone inside a pool and while the team is busy.
fn for_each(count: usize, task: &(dyn Fn(usize) + Sync)) {
    if count <= 1 {
        return (0..count).for_each(task);
    }
    prepare_threads();
    let in_pool = rayon::current_thread_index().is_some();
    if !in_pool && rayon::current_num_threads() == 1 {
        (0..count).for_each(task);
    } else if in_pool || !team::share(count, task) {
        if WITHOUT_POOLS.get() {
            (0..count).for_each(task);
        } else {
            parallel::for_each(count, task);
        }
    }
}

thread_local! {
    /// True while the thread is in [`without_pools`].
    static WITHOUT_POOLS: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work` without tasks in rayon's pools. A thread that waits for such tasks runs others
/// meanwhile, which may need a lock that it holds.
pub(crate) fn without_pools<R>(work: impl FnOnce() -> R) -> R {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            WITHOUT_POOLS.set(self.0);
        }
    }
    let _restore = Restore(WITHOUT_POOLS.replace(true));
    work()
}

/// Runs a kernel over every task of a [`partition`] with the widest vectors of the machine.
///
/// # Safety
///
/// The requirements of [`CpuKernel::run`] of `kernel` hold for every task.
pub(crate) unsafe fn run_tasks<T: Scalar>(tasks: &[usize], kernel: &(impl CpuKernel<T> + Sync)) {
    // SAFETY: the caller vouches for the kernel.
    for_each_task(tasks, |range| unsafe { dispatch(kernel, range) });
}

/// A vector that several threads write, each thread its own elements.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output<T> {
    start: *mut T,
    len: usize,
}

// SAFETY: the pointer is only written through `set` and `add`, whose callers promise disjoint
// elements.
unsafe impl<T: Send> Send for Output<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Output<T> {}

impl<T: Copy> Output<T> {
    /// Shares `y` among threads for as long as the borrow lasts.
    pub(crate) fn new(y: &mut [T]) -> Self {
        Self { start: y.as_mut_ptr(), len: y.len() }
    }

    /// Writes element `i` without reading it.
    ///
    /// # Safety
    ///
    /// `i` is in range, the borrowed vector is alive, and no other thread touches element `i`.
    #[inline(always)]
    pub(crate) unsafe fn set(self, i: usize, value: T) {
        debug_assert!(i < self.len);
        // SAFETY: the caller's promise.
        unsafe { self.at(i).write(value) };
    }

    /// Adds to element `i`.
    ///
    /// # Safety
    ///
    /// As [`set`](Self::set), and element `i` has been written.
    #[inline(always)]
    pub(crate) unsafe fn add(self, i: usize, value: T)
    where
        T: AddAssign,
    {
        debug_assert!(i < self.len);
        // SAFETY: the caller's promise.
        unsafe {
            let mut sum = element(self.start, i);
            sum += value;
            self.set(i, sum);
        }
    }

    /// The elements from `i` on.
    ///
    /// # Safety
    ///
    /// The borrowed vector has at least `i` elements and is alive.
    pub(crate) unsafe fn skip(self, i: usize) -> Self {
        debug_assert!(i <= self.len);
        Self { start: self.start.wrapping_add(i), len: self.len - i }
    }

    /// Returns the address of element `i`, for a vector store.
    ///
    /// # Safety
    ///
    /// As [`set`](Self::set), for every element stored through the pointer.
    #[inline(always)]
    pub(crate) unsafe fn at(self, i: usize) -> *mut T {
        debug_assert!(i <= self.len);
        // SAFETY: the caller's promise.
        unsafe { element_at(self.start, i).cast_mut() }
    }
}

/// Name of the vector instructions that the kernels use here: `avx512`, `avx2` or `portable`.
pub(crate) fn simd_name() -> &'static str {
    simd::level().name()
}

/// Name of the processor as it reports it, if it does.
pub(crate) fn brand() -> String {
    // Miri interprets no such instruction.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{__cpuid, CpuidResult};
        const BRAND: std::ops::RangeInclusive<u32> = 0x8000_0002..=0x8000_0004;
        // The intrinsic is safe in later versions of Rust.
        #[allow(unused_unsafe)]
        // SAFETY: every x86-64 processor has the instruction.
        let cpuid = |leaf: u32| -> CpuidResult { unsafe { __cpuid(leaf) } };
        if cpuid(0x8000_0000).eax >= *BRAND.end() {
            let mut bytes = Vec::new();
            for leaf in BRAND {
                let r = cpuid(leaf);
                for register in [r.eax, r.ebx, r.ecx, r.edx] {
                    bytes.extend_from_slice(&register.to_le_bytes());
                }
            }
            let text = String::from_utf8_lossy(&bytes);
            let words: Vec<&str> = text.trim_matches('\0').split_whitespace().collect();
            if !words.is_empty() {
                return words.join(" ").trim_end_matches('\0').to_owned();
            }
        }
    }
    format!("{} CPU", std::env::consts::ARCH)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{thread, time::Duration};

    #[test]
    fn tasks_cover_everything_once_and_balance() {
        for items in [0usize, 1, 7, 64, 100_000] {
            let tasks = partition(items, 8, |i| i as u64 * 50);
            assert_eq!((tasks[0], tasks[tasks.len() - 1]), (0, items));
            assert!(tasks.len() >= 2 && tasks.windows(2).all(|w| w[0] < w[1] || items == 0));
            assert!(tasks[..tasks.len() - 1].iter().all(|p| p % 8 == 0));
        }
        assert!(partition(100_000, 8, |i| i as u64 * 50).len() > 50);
    }

    #[test]
    fn little_work_is_not_shared() {
        assert_eq!(unsharable(100, 2), 2.0);
        assert_eq!(unsharable(5 * TASK_WORK, 2), 6.0 / 5.0);
        assert_eq!(unsharable(u64::MAX, 2), 1.0);
        assert_eq!(unsharable(u64::MAX, 512), 2.0);
    }

    #[test]
    fn without_pools_a_thread_of_a_pool_does_everything_itself() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        let threads = Mutex::new(Vec::new());
        let task = |_| {
            threads.lock().unwrap().push(thread::current().id());
            thread::sleep(Duration::from_micros(100));
        };
        let caller = pool.install(|| {
            // A task that the caller would run if it waited for the pool.
            rayon::spawn(|| thread::sleep(Duration::from_micros(100)));
            without_pools(|| for_each(50, &task));
            assert!(!WITHOUT_POOLS.get(), "restored");
            thread::current().id()
        });
        assert_eq!(threads.into_inner().unwrap(), [caller; 50]);
    }

    #[test]
    fn one_heavy_item_is_not_cut_into_empty_tasks() {
        let tasks = partition(3, 1, |i| if i >= 2 { 10_000_000 } else { i as u64 });
        assert_eq!(&*tasks, [0, 2, 3]);
    }
}
