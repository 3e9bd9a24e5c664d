//! Parallel loops. What rayon generates for a loop takes long to compile: here it is generated one
//! time, for tasks behind a pointer. A task should take at least a few microseconds.

use rayon::prelude::*;
use std::ops::Range;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Runs `task(i)` for every number below `count`, in parallel if there are several.
pub(crate) fn for_each(count: usize, task: &(dyn Fn(usize) + Sync)) {
    match count {
        0 | 1 => (0..count).for_each(task),
        _ => (0..count).into_par_iter().for_each(task),
    }
}

/// Runs `body` for every item.
pub(crate) fn for_each_item<I>(mut items: I, body: impl Fn(I::Item) + Sync)
where
    I: ExactSizeIterator + Send,
{
    for_each_next(items.len(), &mut || items.next(), &body);
}

/// Runs `body` for `count` items; `next` returns one at a time. Compiled for each type of items,
/// not for each loop.
fn for_each_next<X>(
    count: usize,
    next: &mut (dyn FnMut() -> Option<X> + Send),
    body: &(dyn Fn(X) + Sync),
) {
    let next = Mutex::new(next);
    for_each(count, &|_| {
        if let Some(item) = locked(&next, |next| next()) {
            body(item);
        }
    });
}

/// Runs `body` for every item up to the first errors, one of which it returns.
pub(crate) fn try_for_each_item<I, E>(
    items: I,
    body: impl Fn(I::Item) -> Result<(), E> + Sync,
) -> Result<(), E>
where
    I: ExactSizeIterator + Send,
    E: Send + Sync,
{
    let failed = OnceLock::new();
    for_each_item(items, |item| {
        if failed.get().is_none()
            && let Err(error) = body(item)
        {
            // Another error may be there.
            let _ = failed.set(error);
        }
    });
    failed.into_inner().map_or(Ok(()), Err)
}

/// True if all ranges of consecutive numbers below `len` are as asked; ends early if one is not.
pub(crate) fn all(len: usize, size: usize, range: impl Fn(Range<usize>) -> bool + Sync) -> bool {
    let check = |i| if range(nth(len, size, i)) { Ok(()) } else { Err(()) };
    try_for_each_item(0..len.div_ceil(size), check).is_ok()
}

/// `of(i)` for every number below `count`; a task computes `size` of them, at least one.
pub(crate) fn map<R: Send>(count: usize, size: usize, of: impl Fn(usize) -> R + Sync) -> Vec<R> {
    let mut results = Vec::with_capacity(count);
    extend(&mut results, count, size, of);
    results
}

/// `of(range)` for ranges of `size` consecutive numbers, which cover those below `len`.
pub(crate) fn map_ranges<R: Send>(
    len: usize,
    size: usize,
    of: impl Fn(Range<usize>) -> R + Sync,
) -> Vec<R> {
    map(len.div_ceil(size), 1, |i| of(nth(len, size, i)))
}

/// `of(i)` for every number below `count`, each of which takes some nanoseconds.
pub(crate) fn map_each<R: Send>(count: usize, of: impl Fn(usize) -> R + Sync) -> Vec<R> {
    map(count, short_task_size(count), of)
}

/// Appends `of(i)` for every number below `count` to an empty list with room for them.
pub(crate) fn extend_each<R: Send>(
    list: &mut Vec<R>,
    count: usize,
    of: impl Fn(usize) -> R + Sync,
) {
    extend(list, count, short_task_size(count), of);
}

/// Number of computations of some nanoseconds that a task does.
fn short_task_size(count: usize) -> usize {
    /// Number of tasks that keeps a machine of 64 cores busy.
    const TASKS: usize = 256;
    (count / TASKS).clamp(64, 1 << 16)
}

fn extend<R: Send>(list: &mut Vec<R>, count: usize, size: usize, of: impl Fn(usize) -> R + Sync) {
    assert!(list.is_empty(), "the results are the whole list");
    let size = size.max(1);
    let slots = list.spare_capacity_mut()[..count].chunks_mut(size).enumerate();
    for_each_item(slots, |(task, slots)| {
        for (slot, i) in slots.iter_mut().zip(task * size..) {
            slot.write(of(i));
        }
    });
    // SAFETY: every slot has been written.
    unsafe { list.set_len(count) };
}

/// Adds ranges of `size` consecutive numbers below `len` to accumulators, about as many as threads,
/// and merges these. The result must not depend on the order.
pub(crate) fn fold<A: Send>(
    len: usize,
    size: usize,
    new: impl Fn() -> A + Sync,
    add: impl Fn(&mut A, Range<usize>) + Sync,
    merge: impl Fn(A, A) -> A,
) -> A {
    let spare = SparePool::new(&new);
    for_each(len.div_ceil(size), &|i| spare.with(|sum| add(sum, nth(len, size, i))));
    spare.merged(merge).unwrap_or_else(new)
}

/// Range `i` of `size` consecutive numbers below `len`.
fn nth(len: usize, size: usize, i: usize) -> Range<usize> {
    i * size..(i + 1).saturating_mul(size).min(len)
}

/// Values that tasks use one after the other, such as working memory.
pub(crate) struct SparePool<A, New> {
    values: Mutex<Vec<A>>,
    new: New,
}

impl<A, New: Fn() -> A> SparePool<A, New> {
    /// No values; `new` makes them.
    pub(crate) fn new(new: New) -> Self {
        Self { values: Mutex::default(), new }
    }

    /// Calls `with` with a value that no other task is using.
    pub(crate) fn with<R>(&self, with: impl FnOnce(&mut A) -> R) -> R {
        let mut value = pop(&self.values).unwrap_or_else(&self.new);
        let result = with(&mut value);
        push(&self.values, value);
        result
    }

    /// All values, merged; `None` if there are none.
    pub(crate) fn merged(self, merge: impl Fn(A, A) -> A) -> Option<A> {
        let values = self.values.into_inner().unwrap_or_else(PoisonError::into_inner);
        values.into_iter().reduce(merge)
    }
}

// Functions and not closures, which would be compiled for each caller.
fn pop<A>(values: &Mutex<Vec<A>>) -> Option<A> {
    locked(values, Vec::pop)
}

fn push<A>(values: &Mutex<Vec<A>>, value: A) {
    locked(values, |values| values.push(value));
}

fn locked<T, R>(mutex: &Mutex<T>, with: impl FnOnce(&mut T) -> R) -> R {
    with(&mut mutex.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Computes both, in parallel: `one` on a thread of the pool, `own` on this thread.
pub(crate) fn join<A: Send, B>(one: impl FnOnce() -> A + Send, own: impl FnOnce() -> B) -> (A, B) {
    fn run(one: &mut (dyn FnMut() + Send), own: &mut dyn FnMut()) {
        rayon::in_place_scope(|scope| {
            scope.spawn(|_| one());
            own();
        });
    }
    let (mut one, mut own) = (Some(one), Some(own));
    let (mut a, mut b) = (None, None);
    run(&mut || a = one.take().map(|one| one()), &mut || b = own.take().map(|own| own()));
    a.zip(b).expect("both have run")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_mapped_to_its_place() {
        let large: &[usize] = if cfg!(miri) { &[] } else { &[1000, 100_000] };
        for len in [0, 1, 63, 200].into_iter().chain(large.iter().copied()) {
            let expected: Vec<usize> = (0..len).map(|i| i * i).collect();
            assert_eq!(map_each(len, |i| i * i), expected);
            assert_eq!(map(len, 0, |i| i * i), expected);
            assert_eq!(map_ranges(len, 7, |range| range.len()).iter().sum::<usize>(), len);
            assert!(all(len, 10, |range| range.end <= len));
            assert_eq!(all(len, 10, |range| range.start != 60), len <= 60);
            let sum = fold(len, 13, || 0, |sum, range| *sum += range.sum::<usize>(), |a, b| a + b);
            assert_eq!(sum, len * len.saturating_sub(1) / 2);
        }
    }

    #[test]
    fn an_error_and_both_results_are_returned() {
        let failing = |i: usize| if i == 77 { Err(i) } else { Ok(()) };
        assert_eq!(try_for_each_item(0..100, failing), Err(77));
        assert_eq!(try_for_each_item(0..77, failing), Ok(()));
        assert_eq!(join(|| 1, || "b"), (1, "b"));
    }
}
