//! Communication among the processes of an MPI job.
//!
//! A rank that fails sends an error notice to the others. Every wait polls, so that it ends when a
//! notice arrives or at the time limit. Messages are in buffers of this module, which are never
//! freed after a failure: MPI may still write to them.

mod state;

use crate::comm::{Communicator, reported};
use crate::deadline::Deadline;
use mpi::Threading;
use mpi::ffi::{
    MPI_Comm_set_errhandler, MPI_Get_count, MPI_Iallgatherv, MPI_Ibarrier, MPI_Request, MPI_Status,
    MPI_Test, MPI_Testall, RSMPI_COMM_SELF, RSMPI_COMM_WORLD, RSMPI_ERRORS_RETURN,
    RSMPI_REQUEST_NULL, RSMPI_STATUS_IGNORE, RSMPI_UINT8_T,
};
use mpi::topology::Communicator as _;
use sparseop::Error;
use state::{MESSAGE_BYTES, MpiState, check, duplicate, failure};
use std::fmt::{self, Debug};
use std::mem;
use std::os::raw::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Polls for a result between two polls for a notice.
const NOTICE_POLLS: u32 = 16;

/// Polls without a result after which a waiting thread sleeps between polls.
const BUSY_POLLS: u32 = 20_000;

/// This process as a rank of an MPI job, which `mpirun` or Slurm has started.
///
/// When the last reference is dropped, MPI is finalised unless a rank has failed: that would wait
/// for the failed rank. After a failure the process should end with an error. A rank that leaves
/// for a reason of its own tells the others by [`fail`](Communicator::fail); otherwise they wait
/// for it until the time limit.
pub struct MpiRank {
    rank: usize,
    size: usize,
    limit: Duration,
    state: Mutex<MpiState>,
}

impl Debug for MpiRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {} MPI ranks", self.rank, self.size)
    }
}

impl MpiRank {
    /// Joins the MPI job, and initialises MPI unless the caller has done so. A rank waits for the
    /// others no longer than `limit`, which must exceed the time that one rank may work while
    /// others wait, for example to read a file. The initialisation of MPI itself waits for all
    /// ranks without a limit.
    ///
    /// MPI's errors are returned instead of ending the process, on all communicators if this
    /// initialises MPI.
    ///
    /// # Errors
    ///
    /// [`Error::Communication`] if MPI cannot be initialised.
    pub fn world(limit: Duration) -> Result<Arc<Self>, Error> {
        let universe = mpi::initialize_with_threading(Threading::Serialized);
        if let Some((_, given)) = &universe
            && *given < Threading::Serialized
        {
            let message = "the MPI library does not serve calls from several threads".to_owned();
            return Err(Error::Communication { message });
        }
        let universe = universe.map(|(universe, _)| universe);
        let world = mpi::topology::SimpleCommunicator::world();
        let (rank, size) = (world.rank() as usize, world.size() as usize);
        if universe.is_some() {
            // Errors of pending collective calls are those of the first communicator.
            // SAFETY: MPI is initialised.
            unsafe {
                for comm in [RSMPI_COMM_WORLD, RSMPI_COMM_SELF] {
                    check("handle errors", MPI_Comm_set_errhandler(comm, RSMPI_ERRORS_RETURN))?;
                }
            }
        }
        // SAFETY: MPI is initialised, and every process makes these calls.
        let [messages, notices, farewell] =
            unsafe { [duplicate(limit)?, duplicate(limit)?, duplicate(limit)?] };
        let state = MpiState {
            messages,
            notices,
            farewell,
            failure: None,
            sent: Vec::new(),
            received: Vec::new(),
            universe,
        };
        Ok(Arc::new(Self { rank, size, limit, state: Mutex::new(state) }))
    }

    fn state(&self) -> Result<MutexGuard<'_, MpiState>, Error> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match &state.failure {
            None => Ok(state),
            Some((rank, message)) => {
                Err(Error::RankFailed { rank: *rank, message: message.clone() })
            }
        }
    }

    /// Waits for requests, and returns the number of bytes of each. `missing` names a rank that has
    /// not answered in time, given which requests are complete.
    fn wait(
        &self,
        state: &mut MpiState,
        requests: &mut [MPI_Request],
        missing: &dyn Fn(&[bool]) -> String,
    ) -> Result<Vec<c_int>, Error> {
        let deadline = Deadline::new(self.limit);
        let mut polls = 0u32;
        // SAFETY: statuses are plain data, which MPI writes.
        let mut statuses: Vec<MPI_Status> = vec![unsafe { mem::zeroed() }; requests.len()];
        loop {
            let mut done = 0;
            // SAFETY: the requests are pending or null, and their buffers are in the state.
            check("test messages", unsafe {
                let count = requests.len() as c_int;
                MPI_Testall(count, requests.as_mut_ptr(), &mut done, statuses.as_mut_ptr())
            })?;
            if done != 0 {
                let bytes = statuses.iter().map(|status| {
                    let mut count = 0;
                    // SAFETY: MPI has written the status.
                    unsafe { MPI_Get_count(status, RSMPI_UINT8_T, &mut count) };
                    count
                });
                return Ok(bytes.collect());
            }
            if polls.is_multiple_of(NOTICE_POLLS) {
                state.poll_notices()?;
                if deadline.left().is_zero() {
                    // SAFETY: as above; a complete request becomes null.
                    let arrived = requests.iter_mut().map(|request| unsafe {
                        let mut done = 0;
                        MPI_Test(request, &mut done, RSMPI_STATUS_IGNORE);
                        done != 0
                    });
                    let arrived: Vec<bool> = arrived.collect();
                    return Err(deadline.error(&missing(&arrived)));
                }
            }
            polls = polls.saturating_add(1);
            match polls < BUSY_POLLS {
                true => thread::yield_now(),
                false => thread::sleep(Duration::from_micros(50)),
            }
        }
    }

    /// Ends the communication after an error. The other ranks are notified unless the error is
    /// that of another rank.
    fn abort(&self, mut state: MutexGuard<'_, MpiState>, error: Error) -> Error {
        let failure = match &error {
            Error::RankFailed { rank, message } => (*rank, message.clone()),
            error => {
                let message = match error {
                    Error::Communication { message } => message.clone(),
                    error => error.to_string(),
                };
                state.notify(self.rank, self.size, &message);
                (self.rank, message)
            }
        };
        state.failure.get_or_insert(failure);
        state.abandon();
        error
    }
}

impl Communicator for MpiRank {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn exchange(
        &self,
        sends: &[(usize, &[u8])],
        receives: &mut [(usize, &mut [u8])],
        meanwhile: &mut dyn FnMut(),
    ) -> Result<(), Error> {
        let mut state = self.state()?;
        let outgoing: Vec<_> = sends.iter().map(|(rank, bytes)| (*rank, bytes.len())).collect();
        let incoming: Vec<_> = receives.iter().map(|(rank, bytes)| (*rank, bytes.len())).collect();
        let lengths = [&outgoing, &incoming].map(|all| all.iter().map(|message| message.1).sum());
        if let Err(error) = state.make_room(lengths) {
            return Err(self.abort(state, error));
        }
        sends.iter().for_each(|(_, bytes)| state.sent.extend_from_slice(bytes));
        let (mut requests, mut ranks, mut expected) = (Vec::new(), Vec::new(), Vec::new());
        for (_, length) in &incoming {
            let starts = (0..*length).step_by(MESSAGE_BYTES);
            expected.extend(starts.map(|at| (length - at).min(MESSAGE_BYTES) as c_int));
        }
        let started = state
            .start(&incoming, false, &mut requests, &mut ranks)
            .and_then(|()| state.start(&outgoing, true, &mut requests, &mut ranks));
        if let Err(panic) = catch_unwind(AssertUnwindSafe(meanwhile)) {
            drop(self.abort(state, failure("it panicked")));
            resume_unwind(panic);
        }
        let missing = |arrived: &[bool]| {
            let first = arrived.iter().position(|arrived| !arrived).unwrap_or(0);
            format!("rank {}", ranks.get(first).copied().unwrap_or_default())
        };
        let done = started.and_then(|()| self.wait(&mut state, &mut requests, &missing));
        let done =
            done.and_then(|found| match (0..expected.len()).find(|&i| found[i] != expected[i]) {
                None => Ok(()),
                Some(at) => {
                    let (rank, found, expected) = (ranks[at], found[at], expected[at]);
                    Err(failure(&format!("rank {rank} sends {found} bytes instead of {expected}")))
                }
            });
        if let Err(error) = done {
            return Err(self.abort(state, error));
        }
        let mut rest = &state.received[..];
        for (_, to) in receives {
            let (message, others) = rest.split_at(to.len());
            to.copy_from_slice(message);
            rest = others;
        }
        state.release();
        Ok(())
    }

    fn all_gather(&self, own: &[u8], lengths: &[usize]) -> Result<Vec<u8>, Error> {
        let total: usize = lengths.iter().sum();
        let mut all = reported(self, sparseop::try_zeroed(total))?;
        if total > MESSAGE_BYTES {
            return self.gather_by_messages(own, lengths, all);
        }
        let mut state = self.state()?;
        if let Err(error) = state.make_room([own.len(), total]) {
            return Err(self.abort(state, error));
        }
        state.sent.extend_from_slice(own);
        let counts: Vec<c_int> = lengths.iter().map(|length| *length as c_int).collect();
        let starts = counts.iter().scan(0, |next, count| {
            let start = *next;
            *next += count;
            Some(start)
        });
        let starts: Vec<c_int> = starts.collect();
        let (from, count) = (state.sent.as_ptr().cast(), own.len() as c_int);
        let to = state.received.as_mut_ptr().cast();
        // SAFETY: the buffers have these lengths, and live until the request is complete, or
        // forever; so do the arrays of lengths.
        let (started, request) = unsafe {
            let mut request = RSMPI_REQUEST_NULL;
            let code = MPI_Iallgatherv(
                from,
                count,
                RSMPI_UINT8_T,
                to,
                counts.as_ptr(),
                starts.as_ptr(),
                RSMPI_UINT8_T,
                state.messages,
                &mut request,
            );
            (check("gather", code), request)
        };
        let missing = |_: &[bool]| "another rank".to_owned();
        let mut requests = [request];
        let done = started.and_then(|()| self.wait(&mut state, &mut requests, &missing));
        if let Err(error) = done {
            mem::forget((counts, starts));
            return Err(self.abort(state, error));
        }
        all.copy_from_slice(&state.received);
        state.release();
        Ok(all)
    }

    fn fail(&self, message: &str) {
        // After a failure the other ranks are notified already.
        if let Ok(state) = self.state() {
            drop(self.abort(state, failure(message)));
        }
    }

    fn check(&self) -> Result<(), Error> {
        let mut state = self.state()?;
        state.poll_notices().map_err(|error| self.abort(state, error))
    }

    fn time_limit(&self) -> Option<Duration> {
        Some(self.limit)
    }
}

impl MpiRank {
    /// Gathers more bytes than a collective call of MPI can count.
    fn gather_by_messages(
        &self,
        own: &[u8],
        lengths: &[usize],
        mut all: Vec<u8>,
    ) -> Result<Vec<u8>, Error> {
        let others = (0..self.size).filter(|rank| *rank != self.rank);
        let sends: Vec<(usize, &[u8])> = others.map(|rank| (rank, own)).collect();
        let (mut receives, mut rest) = (Vec::new(), &mut all[..]);
        for (rank, length) in lengths.iter().enumerate() {
            let (message, others) = rest.split_at_mut(*length);
            rest = others;
            match rank == self.rank {
                true => message.copy_from_slice(own),
                false => receives.push((rank, message)),
            }
        }
        self.exchange(&sends, &mut receives, &mut || {})?;
        drop(receives);
        Ok(all)
    }
}

impl MpiRank {
    /// Waits until all ranks have ended their calls.
    fn say_farewell(&self) -> Result<(), Error> {
        let mut state = self.state()?;
        // SAFETY: every rank makes this call once, on this communicator alone.
        let (started, mut request) = unsafe {
            let mut request = [RSMPI_REQUEST_NULL];
            (MPI_Ibarrier(state.farewell, &mut request[0]), request)
        };
        let missing = |_: &[bool]| "another rank".to_owned();
        let done = check("end", started);
        let done = done.and_then(|()| self.wait(&mut state, &mut request, &missing));
        done.map(drop).map_err(|error| self.abort(state, error))
    }
}

impl Drop for MpiRank {
    fn drop(&mut self) {
        if thread::panicking() || self.say_farewell().is_err() {
            let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
            state.abandon();
        }
    }
}
