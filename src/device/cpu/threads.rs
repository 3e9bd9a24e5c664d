//! The threads of rayon that analyses, packing and products use, on systems that may refuse some of
//! them, and in children of `fork`, where they do not exist.

use rayon::{ThreadBuilder, ThreadPoolBuilder};
use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// True if the threads of rayon's global pool cannot be used in this process.
static ALONE: AtomicBool = AtomicBool::new(false);

/// Makes rayon usable on this thread: every entry of the library calls this first.
///
/// Creates rayon's global pool, unless the program has done so, with as many of its threads as the
/// system permits. If there are none, and in a child of `fork`, the calling thread works alone.
#[inline]
pub fn prepare_threads() {
    // The pool that a thread is in is used, whatever the global one.
    if rayon::current_thread_index().is_some() && !ALONE.load(Relaxed) {
        return;
    }
    static CREATED: OnceLock<()> = OnceLock::new();
    CREATED.get_or_init(|| {
        watch_forks();
        if !create_pool(wanted(), spawn) {
            ALONE.store(true, Relaxed);
        }
    });
    if ALONE.load(Relaxed) {
        work_alone();
    }
}

/// Number of threads that rayon creates by default.
fn wanted() -> usize {
    let set = std::env::var("RAYON_NUM_THREADS").ok().and_then(|number| number.parse().ok());
    set.filter(|&number| number > 0)
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// Main function of a thread.
type ThreadMain = Box<dyn FnOnce() + Send>;

fn spawn(main: ThreadMain) -> io::Result<()> {
    std::thread::Builder::new().spawn(main).map(drop)
}

/// Creates rayon's global pool with `wanted` threads, or with those that `spawn` creates before it
/// fails. Returns false if there is none.
fn create_pool(wanted: usize, spawn: impl Fn(ThreadMain) -> io::Result<()>) -> bool {
    let (sender, threads) = spawn_threads(wanted, spawn);
    if threads == 0 {
        return false;
    }
    // Threads exist before the pool does: rayon has no pool at all if one of them is refused.
    let builder = ThreadPoolBuilder::new().num_threads(threads);
    let created = builder.spawn_handler(sender).build_global();
    // Without an I/O error the program has created the pool.
    created.err().is_none_or(|error| std::error::Error::source(&error).is_none())
}

/// Spawns at most `wanted` threads, up to the first failure, each of which waits for a thread of
/// rayon to run. Returns the function that passes those on, and the number of threads, which end
/// when the function is dropped.
fn spawn_threads(
    wanted: usize,
    spawn: impl Fn(ThreadMain) -> io::Result<()>,
) -> (impl Fn(ThreadBuilder) -> io::Result<()>, usize) {
    let (sender, receiver) = channel::<ThreadBuilder>();
    let receiver = Arc::new(Mutex::new(receiver));
    let main = |receiver: Arc<Mutex<Receiver<ThreadBuilder>>>| {
        let next = receiver.lock().unwrap_or_else(PoisonError::into_inner).recv();
        if let Ok(thread) = next {
            thread.run();
        }
    };
    let next = || {
        let receiver = Arc::clone(&receiver);
        spawn(Box::new(move || main(receiver))).ok()
    };
    let threads = (0..wanted).map_while(|_| next()).count();
    (move |thread| sender.send(thread).map_err(|_| io::ErrorKind::BrokenPipe.into()), threads)
}

/// Makes the calling thread a pool of its own, unless it is in a pool.
#[cold]
fn work_alone() {
    thread_local! {
        static DONE: Cell<bool> = const { Cell::new(false) };
    }
    if !DONE.replace(true) {
        let pool = ThreadPoolBuilder::new().num_threads(1).use_current_thread().build();
        // It belongs to the thread as long as that lives. An error: the thread is in a pool.
        std::mem::forget(pool);
    }
}

/// Notes in every child of `fork` that the threads do not exist there.
fn watch_forks() {
    #[cfg(all(unix, not(miri)))]
    {
        extern "C" fn in_child() {
            ALONE.store(true, Relaxed);
        }
        // SAFETY: the handler only stores to an atomic number, which is allowed after a fork.
        // Without memory for it, children find out nothing.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rayon::prelude::*;
    use std::sync::atomic::AtomicUsize;

    /// Spawns threads until `most` exist.
    fn spawn_up_to(most: usize) -> impl Fn(ThreadMain) -> io::Result<()> {
        let spawned = AtomicUsize::new(0);
        move |main| match spawned.fetch_add(1, Relaxed) < most {
            true => spawn(main),
            false => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    #[test]
    fn refused_threads_make_the_pool_smaller() {
        for (most, expected) in [(0, 0), (1, 1), (3, 3), (9, 4)] {
            let (sender, threads) = spawn_threads(4, spawn_up_to(most));
            assert_eq!(threads, expected);
            if threads > 0 {
                let builder = ThreadPoolBuilder::new().num_threads(threads);
                let pool = builder.spawn_handler(sender).build().unwrap();
                let sum: u64 = pool.install(|| (0..10_000u64).into_par_iter().sum());
                assert_eq!((sum, pool.current_num_threads()), (49_995_000, expected));
            }
        }
        assert!(!create_pool(4, spawn_up_to(0)), "no thread, no pool");
    }

    #[test]
    fn a_thread_can_work_alone() {
        let alone = || {
            work_alone();
            work_alone();
            let sum: u64 = (0..10_000u64).into_par_iter().sum();
            (sum, rayon::current_num_threads(), rayon::current_thread_index())
        };
        assert_eq!(std::thread::spawn(alone).join().unwrap(), (49_995_000, 1, Some(0)));
    }
}
