//! The threads that a product, or the analysis of a small matrix, is shared among.
//!
//! A product takes microseconds to milliseconds and comes again and again, often with a little serial work in between. A general pool
//! puts the caller to sleep and wakes its threads, which then often begin on one core: measured on two cores, a product of 3.4 ms took
//! 5.2 ms after every stretch of serial work. Here the caller takes part, so that at worst it does everything itself, and the others
//! wait actively for a moment before they sleep. Nothing is allocated.

use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, OnceLock, TryLockError};
use std::thread::{self, Thread};

/// Rounds of active waiting before a thread sleeps: about 30 µs, a few small products or a dot product.
const SPINS: u32 = 2000;

/// What is to be done: the number of the part.
type Body<'a> = dyn Fn(usize) + Sync + 'a;

/// The members and the work they have at present.
struct Team {
    /// Held while a product is shared: there is one at a time.
    turn: Mutex<()>,
    /// Odd while there is work; every change is a step.
    epoch: AtomicU64,
    /// Members other than the caller that may be looking at the work.
    active: AtomicUsize,
    /// Whether a part that another member did has panicked.
    failed: AtomicBool,
    /// Written only by who holds the turn, while there is no work and nobody is active.
    work: UnsafeCell<Option<Work>>,
    /// The next part of every member's share.
    cursors: Vec<AtomicUsize>,
    /// Members other than the caller.
    helpers: OnceLock<Vec<Helper>>,
}

/// The body, its true lifetime forgotten, and the number of parts.
#[derive(Clone, Copy)]
struct Work {
    body: *const Body<'static>,
    parts: usize,
}

struct Helper {
    thread: Thread,
    asleep: &'static AtomicBool,
}

// SAFETY: `work` is written by one thread while nobody else looks (see `share` and `help`), and the body it points to is `Sync`.
unsafe impl Sync for Team {}
// SAFETY: as above.
unsafe impl Send for Team {}

/// Runs `body(part)` for every part, on the caller and the other members of the team. Gives false, having done nothing, when the team
/// is busy with another product or has no other member.
pub(super) fn share(parts: usize, body: &Body<'_>) -> bool {
    static TEAM: OnceLock<Option<&'static Team>> = OnceLock::new();
    let team = TEAM.get_or_init(|| Team::gather(rayon::current_num_threads()));
    team.is_some_and(|team| team.share(parts, body))
}

impl Team {
    /// A team of so many members, the caller counted; none where nobody else can be had.
    fn gather(members: usize) -> Option<&'static Self> {
        let team: &'static Self = Box::leak(Box::new(Self {
            turn: Mutex::new(()),
            epoch: AtomicU64::new(0),
            active: AtomicUsize::new(0),
            failed: AtomicBool::new(false),
            work: UnsafeCell::new(None),
            cursors: (0..members).map(|_| AtomicUsize::new(0)).collect(),
            helpers: OnceLock::new(),
        }));
        let helper = |member: usize| {
            let asleep: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
            let named = thread::Builder::new().name(format!("sparseop-{member}"));
            // A thread that cannot be had is not missed: its share is done by the others.
            let spawned = named.spawn(move || team.attend(member, asleep)).ok()?;
            Some(Helper { thread: spawned.thread().clone(), asleep })
        };
        let helpers: Vec<Helper> = (1..members).filter_map(helper).collect();
        let alone = helpers.is_empty();
        let _ = team.helpers.set(helpers);
        (!alone).then_some(team)
    }

    fn share(&self, parts: usize, body: &Body<'_>) -> bool {
        let _turn = match self.turn.try_lock() {
            Ok(turn) => turn,
            // A body that panicked has left the team in order: `Open` saw to that.
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        for (member, cursor) in self.cursors.iter().enumerate() {
            cursor.store(self.bound(member, parts), SeqCst);
        }
        // SAFETY: the lifetime is only forgotten; `Open` keeps this function from returning while anybody may call the body.
        let body = unsafe { std::mem::transmute::<*const Body<'_>, *const Body<'static>>(body) };
        // SAFETY: the epoch is even and nobody is active, so nobody looks.
        unsafe { *self.work.get() = Some(Work { body, parts }) };
        self.failed.store(false, SeqCst);
        self.epoch.fetch_add(1, SeqCst);
        let open = Open(self);
        for helper in self.helpers.get().into_iter().flatten().take(parts - 1) {
            if helper.asleep.swap(false, SeqCst) {
                helper.thread.unpark();
            }
        }
        self.help(0, Work { body, parts });
        drop(open);
        assert!(!self.failed.load(SeqCst), "a part of shared work panicked");
        true
    }

    /// Where the share of a member begins among so many parts.
    fn bound(&self, member: usize, parts: usize) -> usize {
        parts * member / self.cursors.len()
    }

    /// Does the member's own share, then what is left of the others'.
    fn help(&self, member: usize, work: Work) {
        let members = self.cursors.len();
        for owner in (member..members).chain(0..member) {
            let end = self.bound(owner + 1, work.parts);
            loop {
                let part = self.cursors[owner].fetch_add(1, SeqCst);
                if part >= end {
                    break;
                }
                // SAFETY: there is work until `Open` is dropped, which waits for every active member.
                unsafe { (*work.body)(part) };
            }
        }
    }

    /// What a member other than the caller does for ever.
    fn attend(&self, member: usize, asleep: &AtomicBool) {
        let mut done = 0;
        loop {
            let epoch = self.await_work(done, asleep);
            done = epoch;
            let _active = Active::new(&self.active);
            // Either this sees that the work is over, or who ends it sees that somebody is active and waits.
            if self.epoch.load(SeqCst) == epoch {
                // SAFETY: there is work, so nobody writes it.
                if let Some(work) = unsafe { *self.work.get() } {
                    let helped = catch_unwind(AssertUnwindSafe(|| self.help(member, work)));
                    self.failed.fetch_or(helped.is_err(), SeqCst);
                }
            }
        }
    }

    /// Waits for work other than that of epoch `done`.
    fn await_work(&self, done: u64, asleep: &AtomicBool) -> u64 {
        let found = || Some(self.epoch.load(SeqCst)).filter(|epoch| epoch % 2 == 1 && *epoch != done);
        loop {
            for _ in 0..SPINS {
                if let Some(epoch) = found() {
                    return epoch;
                }
                std::hint::spin_loop();
            }
            asleep.store(true, SeqCst);
            // Whoever brings work after this look sees that this thread is asleep and wakes it.
            if found().is_none() {
                thread::park();
            }
            asleep.store(false, SeqCst);
        }
    }
}

/// There is work; dropped, there is none, and nobody looks at it any more.
struct Open<'a>(&'a Team);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.epoch.fetch_add(1, SeqCst);
        let mut spins = 0;
        while self.0.active.load(SeqCst) > 0 {
            spins += 1;
            if spins < SPINS { std::hint::spin_loop() } else { thread::yield_now() }
        }
    }
}

/// Somebody is looking at the work.
struct Active<'a>(&'a AtomicUsize);

impl<'a> Active<'a> {
    fn new(active: &'a AtomicUsize) -> Self {
        active.fetch_add(1, SeqCst);
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

    #[test]
    fn every_part_is_done_once_however_many_there_are() {
        let team = Team::gather(4).unwrap();
        for round in 0..2000 {
            let parts = 1 + round % 37;
            let done: Vec<AtomicUsize> = (0..parts).map(|_| AtomicUsize::new(0)).collect();
            assert!(team.share(parts, &|part| {
                done[part].fetch_add(1, SeqCst);
            }));
            assert!(done.iter().all(|d| d.load(SeqCst) == 1), "{parts} parts");
            if round % 100 == 0 {
                // Long enough for everybody to fall asleep.
                thread::sleep(std::time::Duration::from_millis(1));
            }
        }
    }

    #[test]
    fn several_callers_do_not_disturb_each_other() {
        let team = Team::gather(3).unwrap();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let sum = AtomicUsize::new(0);
                        let add = |part: usize| {
                            sum.fetch_add(part, SeqCst);
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
