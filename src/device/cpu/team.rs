//! The team of threads that shares a product, or the analysis of a small matrix.
//!
//! A product takes microseconds to milliseconds and is repeated many times, often with a little
//! serial work in between. A general thread pool puts the caller to sleep and wakes its threads,
//! which often start on one core: measured on two cores, a product of 3.4 ms takes 5.2 ms after
//! every period of serial work. Here the caller takes part, so at worst it does all the work
//! itself. The other threads spin for a moment before they sleep. Nothing is allocated.

use super::sync::{
    AtomicBool, AtomicU64, AtomicUsize, Builder, JoinHandle, Mutex, SPINS, Thread, UnsafeCell,
    park, spin_loop, write_before_read, yield_now,
};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{OnceLock, TryLockError};

/// The work of one task, called with the number of the task.
pub(super) type Body<'a> = dyn Fn(usize) + Sync + 'a;

/// Main function of a member other than the caller.
pub(super) type MemberMain = Box<dyn FnOnce() + Send>;

/// The members of the team and their current work.
pub(super) struct Team {
    /// Held while a product is shared: one at a time.
    lock: Mutex<()>,
    /// Odd while there is work; every change increments it.
    epoch: AtomicU64,
    /// Number of members other than the caller that may be reading the work.
    active: AtomicUsize,
    /// True if a task run by another member has panicked.
    failed: AtomicBool,
    /// Written only by the thread that holds `lock`, while there is no work and no member is
    /// active.
    work: UnsafeCell<Option<SharedWork>>,
    /// Next task of every member's share.
    cursors: Vec<AtomicUsize>,
    /// The members other than the caller.
    helpers: OnceLock<Vec<Helper>>,
}

/// The body, with its lifetime erased, and the number of tasks.
#[derive(Clone, Copy)]
struct SharedWork {
    body: *const Body<'static>,
    tasks: usize,
}

struct Helper {
    thread: Thread,
    asleep: &'static AtomicBool,
}

// SAFETY: `work` is written by one thread while no other reads it (see `share` and `help`), and the
// body it points to is `Sync`.
unsafe impl Sync for Team {}
// SAFETY: as above.
unsafe impl Send for Team {}

/// Runs `body(task)` for every task, on the caller and the other members of the team. Returns
/// false, having done nothing, if the team is busy with another product or has no other member.
pub(super) fn share(tasks: usize, body: &Body<'_>) -> bool {
    static TEAM: OnceLock<Option<&'static Team>> = OnceLock::new();
    let team = TEAM.get_or_init(|| Team::gather(rayon::current_num_threads()));
    team.is_some_and(|team| team.share(tasks, body))
}

impl Team {
    /// Creates a team of `members` members, counting the caller. `None` if no thread can be
    /// spawned.
    fn gather(members: usize) -> Option<&'static Self> {
        Self::gather_by(members, |builder, main| builder.spawn(main))
    }

    /// As [`gather`](Self::gather), with the function that spawns a thread.
    pub(super) fn gather_by(
        members: usize,
        spawn: impl Fn(Builder, MemberMain) -> io::Result<JoinHandle<()>>,
    ) -> Option<&'static Self> {
        let team: &'static Self = Box::leak(Box::new(Self {
            lock: Mutex::new(()),
            epoch: AtomicU64::new(0),
            active: AtomicUsize::new(0),
            failed: AtomicBool::new(false),
            work: UnsafeCell::new(None),
            cursors: (0..members).map(|_| AtomicUsize::new(0)).collect(),
            helpers: OnceLock::new(),
        }));
        let helper = |member: usize| {
            let asleep: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
            let named = Builder::new().name(format!("sparseop-{member}"));
            // If a thread cannot be spawned, the other members run its share.
            let spawned = spawn(named, Box::new(move || team.worker_loop(member, asleep))).ok()?;
            Some(Helper { thread: spawned.thread().clone(), asleep })
        };
        let helpers: Vec<Helper> = (1..members).filter_map(helper).collect();
        let alone = helpers.is_empty();
        let _ = team.helpers.set(helpers);
        (!alone).then_some(team)
    }

    /// As [`share`], on this team.
    pub(super) fn share(&self, tasks: usize, body: &Body<'_>) -> bool {
        let _lock = match self.lock.try_lock() {
            Ok(lock) => lock,
            // A body that panicked leaves the team in a valid state: `Open` restores it.
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        for (member, cursor) in self.cursors.iter().enumerate() {
            cursor.store(self.bound(member, tasks), SeqCst);
        }
        // SAFETY: only the lifetime is erased; `Open` keeps this function from returning while any
        // member may call the body.
        let body = unsafe { std::mem::transmute::<*const Body<'_>, *const Body<'static>>(body) };
        // SAFETY: the epoch is even and no member is active, so no member reads it.
        self.work.with_mut(|work| unsafe { *work = Some(SharedWork { body, tasks }) });
        self.failed.store(false, SeqCst);
        self.epoch.fetch_add(1, SeqCst);
        write_before_read();
        let open = Open(self);
        for helper in self.helpers.get().into_iter().flatten().take(tasks - 1) {
            if helper.asleep.swap(false, SeqCst) {
                helper.thread.unpark();
            }
        }
        self.help(0, SharedWork { body, tasks });
        drop(open);
        assert!(!self.failed.load(SeqCst), "a task of shared work panicked");
        true
    }

    /// First task of a member's share of `tasks` tasks.
    fn bound(&self, member: usize, tasks: usize) -> usize {
        tasks * member / self.cursors.len()
    }

    /// Runs the member's own share, and then the remaining tasks of the other shares.
    fn help(&self, member: usize, work: SharedWork) {
        let members = self.cursors.len();
        for owner in (member..members).chain(0..member) {
            let end = self.bound(owner + 1, work.tasks);
            loop {
                let task = self.cursors[owner].fetch_add(1, SeqCst);
                if task >= end {
                    break;
                }
                // SAFETY: there is work until `Open` is dropped, which waits for every active
                // member.
                unsafe { (*work.body)(task) };
            }
        }
    }

    /// Takes part in all work, as a member other than the caller. Never returns.
    fn worker_loop(&self, member: usize, asleep: &AtomicBool) {
        let mut done = 0;
        loop {
            let epoch = self.await_work(done, asleep);
            done = epoch;
            let _active = Active::new(&self.active);
            // Either this thread sees that the work is over, or the thread that ends it sees an
            // active member and waits.
            if self.epoch.load(SeqCst) == epoch {
                // SAFETY: there is work, so no thread writes it.
                if let Some(work) = self.work.with(|work| unsafe { *work }) {
                    let helped = catch_unwind(AssertUnwindSafe(|| self.help(member, work)));
                    self.failed.fetch_or(helped.is_err(), SeqCst);
                }
            }
        }
    }

    /// Waits for work of another epoch than `done`.
    fn await_work(&self, done: u64, asleep: &AtomicBool) -> u64 {
        let found =
            || Some(self.epoch.load(SeqCst)).filter(|epoch| epoch % 2 == 1 && *epoch != done);
        loop {
            for _ in 0..SPINS {
                if let Some(epoch) = found() {
                    return epoch;
                }
                spin_loop();
            }
            asleep.store(true, SeqCst);
            write_before_read();
            // A thread that adds work after this check sees that this thread is asleep and wakes
            // it.
            if found().is_none() {
                park();
            }
            asleep.store(false, SeqCst);
        }
    }
}

/// Guard while there is work. When it is dropped the work is over and no member reads it any more.
struct Open<'a>(&'a Team);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.epoch.fetch_add(1, SeqCst);
        write_before_read();
        let mut spins = 0;
        while self.0.active.load(SeqCst) > 0 {
            spins += 1;
            if spins < SPINS { spin_loop() } else { yield_now() }
        }
    }
}

/// Guard of a member that is reading the work.
struct Active<'a>(&'a AtomicUsize);

impl<'a> Active<'a> {
    fn new(active: &'a AtomicUsize) -> Self {
        active.fetch_add(1, SeqCst);
        write_before_read();
        Self(active)
    }
}

impl Drop for Active<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    const ROUNDS: usize = if cfg!(miri) { 40 } else { 2000 };

    #[test]
    fn every_task_is_done_once_however_many_there_are() {
        let team = Team::gather(4).unwrap();
        for round in 0..ROUNDS {
            let tasks = 1 + round % 37;
            let done: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
            assert!(team.share(tasks, &|task| {
                done[task].fetch_add(1, SeqCst);
            }));
            assert!(done.iter().all(|d| d.load(SeqCst) == 1), "{tasks} tasks");
            if round % 100 == 0 {
                // Long enough for all members to fall asleep.
                thread::sleep(std::time::Duration::from_millis(1));
            }
        }
    }

    #[test]
    fn refused_members_leave_their_tasks_to_the_others() {
        for refused in [&[2][..], &[1, 3], &[1, 2, 3]] {
            let spawned = AtomicUsize::new(0);
            let team = Team::gather_by(4, |builder, main| {
                match refused.contains(&(spawned.fetch_add(1, SeqCst) + 1)) {
                    true => Err(io::ErrorKind::WouldBlock.into()),
                    false => builder.spawn(main),
                }
            });
            assert_eq!(team.is_none(), refused.len() == 3, "the caller alone is no team");
            let Some(team) = team else { continue };
            let done: Vec<AtomicUsize> = (0..50).map(|_| AtomicUsize::new(0)).collect();
            assert!(team.share(done.len(), &|task| {
                done[task].fetch_add(1, SeqCst);
            }));
            assert!(done.iter().all(|count| count.load(SeqCst) == 1), "{refused:?}");
        }
    }

    #[test]
    fn several_callers_do_not_disturb_each_other() {
        let team = Team::gather(3).unwrap();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..ROUNDS / 4 {
                        let sum = AtomicUsize::new(0);
                        let add = |task: usize| {
                            sum.fetch_add(task, SeqCst);
                        };
                        if !team.share(20, &add) {
                            (0..20).for_each(add);
                        }
                        assert_eq!(sum.load(SeqCst), 190);
                    }
                });
            }
        });
    }

    #[test]
    fn a_panic_anywhere_reaches_the_caller_and_leaves_the_team_in_order() {
        let team = Team::gather(2).unwrap();
        let caller = thread::current().id();
        for of_caller in [true, false] {
            let panics = catch_unwind(AssertUnwindSafe(|| {
                team.share(64, &|_| {
                    thread::sleep(std::time::Duration::from_millis(1));
                    assert!((thread::current().id() == caller) != of_caller, "on purpose");
                });
            }));
            assert!(panics.is_err());
        }
        let count = AtomicUsize::new(0);
        assert!(team.share(8, &|_| {
            count.fetch_add(1, SeqCst);
        }));
        assert_eq!(count.load(SeqCst), 8);
    }
}
