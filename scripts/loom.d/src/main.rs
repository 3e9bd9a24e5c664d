//! Models of the thread team: every order of its threads, up to a number of preemptions.
//!
//! Each task of shared work writes a cell of its own, and the caller reads them when the work is
//! over. loom finds a task that two threads run, a task that is still running when the caller goes
//! on, work that is replaced while a thread reads it, and a thread that waits for ever.

mod sync;
#[path = "../../../src/device/cpu/team.rs"]
#[allow(dead_code)]
mod team;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use sync::{Builder, JoinHandle, OVER, Thread, UnsafeCell};
use team::Team;

/// Preemptions of a thread that an execution may have: two are enough for most faults.
const PREEMPTIONS: usize = 3;

/// The result of every task.
struct Tasks(Vec<UnsafeCell<u32>>);

// SAFETY: loom reports accesses that are not ordered.
unsafe impl Sync for Tasks {}

/// A team of `members`, and its threads.
fn gather(members: usize) -> (&'static Team, Vec<Thread>) {
    OVER.store(false, SeqCst);
    let threads = Mutex::new(Vec::new());
    let team = Team::gather_by(members, |builder: Builder, main| -> io::Result<JoinHandle<()>> {
        let spawned = builder.spawn(|| drop(catch_unwind(AssertUnwindSafe(main))))?;
        threads.lock().unwrap().push(spawned.thread().clone());
        Ok(spawned)
    });
    (team.unwrap(), threads.into_inner().unwrap())
}

/// Ends the threads of a team.
fn dismiss(threads: &[Thread]) {
    OVER.store(true, SeqCst);
    threads.iter().for_each(Thread::unpark);
}

/// Shares `tasks` tasks of work, and checks that each has run once. True if the team was free.
fn share(team: &Team, tasks: usize) -> bool {
    let cells = Tasks((0..tasks).map(|_| UnsafeCell::new(0)).collect());
    let cells = &cells;
    // SAFETY: as above.
    let shared = team.share(tasks, &|task| cells.0[task].with_mut(|cell| unsafe { *cell += 1 }));
    for cell in &cells.0 {
        // SAFETY: as above.
        cell.with(|cell| assert_eq!(unsafe { *cell }, u32::from(shared)));
    }
    shared
}

/// Explores a model, and prints the number of executions.
fn explore(name: &str, model: impl Fn() + Sync + Send + 'static) {
    let executions = Arc::new(AtomicU64::new(0));
    let count = executions.clone();
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(move || {
        count.fetch_add(1, SeqCst);
        model();
    });
    println!("{name}: {} executions", executions.load(SeqCst));
}

fn main() {
    explore("two works of two tasks, two members", || {
        let (team, threads) = gather(2);
        assert!(share(team, 2));
        assert!(share(team, 2));
        dismiss(&threads);
    });
    explore("a work of three tasks, three members", || {
        let (team, threads) = gather(3);
        assert!(share(team, 3));
        dismiss(&threads);
    });
    explore("two callers, two members", || {
        let (team, threads) = gather(2);
        let other = loom::thread::spawn(|| share(team, 2));
        let here = share(team, 2);
        let there = other.join().unwrap();
        assert!(here || there, "a free team refuses no one");
        dismiss(&threads);
    });
}
