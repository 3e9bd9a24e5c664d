//! Communication among the processes of an MPI job.
//!
//! A rank that fails sends an error notice to the others. Every wait polls, so that it ends when a
//! notice arrives or at the time limit. Messages are in buffers of this module, which are never
//! freed after a failure: MPI may still write to them.

use crate::comm::Communicator;
use crate::deadline::Deadline;
use mpi::Threading;
use mpi::environment::Universe;
use mpi::ffi::{
    MPI_Comm, MPI_Comm_dup, MPI_Comm_set_errhandler, MPI_Get_count, MPI_Iallgatherv, MPI_Iprobe,
    MPI_Irecv, MPI_Isend, MPI_Recv, MPI_Request, MPI_Request_free, MPI_Status, MPI_Test,
    MPI_Testall, RSMPI_ANY_SOURCE, RSMPI_COMM_WORLD, RSMPI_ERRORS_RETURN, RSMPI_REQUEST_NULL,
    RSMPI_STATUS_IGNORE, RSMPI_UINT8_T,
};
use mpi::topology::Communicator as _;
use sparseop::Error;
use std::fmt::{self, Debug};
use std::mem;
use std::os::raw::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Largest number of bytes of a message; more are sent in several, because MPI counts in 32 bits.
const MESSAGE_BYTES: usize = 1 << 30;

/// Tag of all messages.
const TAG: c_int = 0;

/// Polls for a result between two polls for a notice.
const NOTICE_POLLS: u32 = 16;

/// Polls without a result after which a waiting thread sleeps between polls.
const BUSY_POLLS: u32 = 20_000;

/// Largest number of bytes of a notice.
const NOTICE_BYTES: usize = 1000;

/// This process as a rank of an MPI job, which `mpirun` or Slurm has started.
///
/// When the last reference is dropped, MPI is finalised unless a rank has failed: that would wait
/// for the failed rank. After a failure the process should end with an error.
pub struct MpiRank {
    rank: usize,
    size: usize,
    limit: Duration,
    state: Mutex<MpiState>,
}

struct MpiState {
    messages: MPI_Comm,
    notices: MPI_Comm,
    /// Rank and message of the first failure.
    failure: Option<(usize, String)>,
    sent: Vec<u8>,
    received: Vec<u8>,
    /// Finalises MPI when it is dropped. None after a failure, and if the caller has initialised
    /// MPI.
    universe: Option<Universe>,
}

// SAFETY: the handles of MPI are used with the lock of the state held, as the requested level of
// threading demands.
unsafe impl Send for MpiState {}

impl Debug for MpiRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {} MPI ranks", self.rank, self.size)
    }
}

impl MpiRank {
    /// Joins the MPI job, and initialises MPI unless the caller has done so. A rank waits for the
    /// others no longer than `limit`, which must exceed the time that one rank may work while
    /// others wait, for example to read a file.
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
        // SAFETY: MPI is initialised, and the handles are written before they are used.
        let [messages, notices] = unsafe { [duplicate()?, duplicate()?] };
        let state = MpiState {
            messages,
            notices,
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

impl MpiState {
    /// Polls for a notice: the error of another rank.
    ///
    /// # Errors
    ///
    /// [`Error::RankFailed`] if a notice has arrived.
    fn poll_notices(&mut self) -> Result<(), Error> {
        let mut arrived = 0;
        // SAFETY: a status is plain data, which the probe writes.
        let mut status: MPI_Status = unsafe { mem::zeroed() };
        // SAFETY: the communicator is valid; the message is received with its probed length.
        let (rank, bytes) = unsafe {
            let probed = MPI_Iprobe(RSMPI_ANY_SOURCE, TAG, self.notices, &mut arrived, &mut status);
            check("poll for notices", probed)?;
            if arrived == 0 {
                return Ok(());
            }
            let (rank, mut count) = (status.MPI_SOURCE, 0);
            MPI_Get_count(&status, RSMPI_UINT8_T, &mut count);
            let mut bytes = vec![0u8; count.max(0) as usize];
            let to = bytes.as_mut_ptr().cast();
            let received =
                MPI_Recv(to, count, RSMPI_UINT8_T, rank, TAG, self.notices, RSMPI_STATUS_IGNORE);
            check("receive a notice", received)?;
            (rank as usize, bytes)
        };
        Err(Error::RankFailed { rank, message: String::from_utf8_lossy(&bytes).into_owned() })
    }

    /// Sends a notice to all other ranks, without waiting.
    fn notify(&self, own: usize, size: usize, message: &str) {
        let bytes = &message.as_bytes()[..message.len().min(NOTICE_BYTES)];
        // Never freed: MPI may send it later.
        let bytes: &'static [u8] = Vec::leak(bytes.to_vec());
        for rank in (0..size).filter(|rank| *rank != own) {
            // SAFETY: the bytes live forever, and no call waits for the request.
            unsafe {
                let mut request = RSMPI_REQUEST_NULL;
                let (from, count) = (bytes.as_ptr().cast(), bytes.len() as c_int);
                let (to, notices) = (rank as c_int, self.notices);
                let sent = MPI_Isend(from, count, RSMPI_UINT8_T, to, TAG, notices, &mut request);
                if sent == 0 {
                    MPI_Request_free(&mut request);
                }
            }
        }
    }

    /// Leaks the buffers, and leaves MPI running until the end of the process.
    fn abandon(&mut self) {
        mem::forget(mem::take(&mut self.sent));
        mem::forget(mem::take(&mut self.received));
        mem::forget(self.universe.take());
    }

    /// Starts to send or to receive the parts of a buffer, given by rank and length, in messages of
    /// at most [`MESSAGE_BYTES`].
    fn start(
        &mut self,
        transfers: &[(usize, usize)],
        sends: bool,
        requests: &mut Vec<MPI_Request>,
        ranks: &mut Vec<usize>,
    ) -> Result<(), Error> {
        let mut at = 0;
        for &(rank, length) in transfers {
            for start in (0..length).step_by(MESSAGE_BYTES) {
                let count = (length - start).min(MESSAGE_BYTES) as c_int;
                // SAFETY: the message is inside of the buffer, which lives until the request is
                // complete, or forever.
                let (started, request) = unsafe {
                    let mut request = RSMPI_REQUEST_NULL;
                    let (to, kind, messages) = (rank as c_int, RSMPI_UINT8_T, self.messages);
                    let code = if sends {
                        let from = self.sent.as_ptr().add(at + start).cast();
                        MPI_Isend(from, count, kind, to, TAG, messages, &mut request)
                    } else {
                        let into = self.received.as_mut_ptr().add(at + start).cast();
                        MPI_Irecv(into, count, kind, to, TAG, messages, &mut request)
                    };
                    (code, request)
                };
                check("start a message", started)?;
                requests.push(request);
                ranks.push(rank);
            }
            at += length;
        }
        Ok(())
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
        state.sent.clear();
        sends.iter().for_each(|(_, bytes)| state.sent.extend_from_slice(bytes));
        state.received.resize(incoming.iter().map(|message| message.1).sum(), 0);
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
        Ok(())
    }

    fn all_gather(&self, own: &[u8], lengths: &[usize]) -> Result<Vec<u8>, Error> {
        let total: usize = lengths.iter().sum();
        let mut all = sparseop::try_zeroed(total)?;
        if total > MESSAGE_BYTES {
            return self.gather_by_messages(own, lengths, all);
        }
        let mut state = self.state()?;
        state.sent.clear();
        state.sent.extend_from_slice(own);
        state.received.resize(total, 0);
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

impl Drop for MpiRank {
    fn drop(&mut self) {
        let all_succeed =
            !thread::panicking() && self.all_gather(&[0], &vec![1; self.size]).is_ok();
        if !all_succeed {
            let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
            state.abandon();
        }
    }
}

fn failure(message: &str) -> Error {
    Error::Communication { message: message.to_owned() }
}

/// Converts the return code of a call of MPI.
fn check(action: &str, code: c_int) -> Result<(), Error> {
    if code == 0 {
        return Ok(());
    }
    Err(failure(&format!("MPI cannot {action}: error {code}; another rank may have ended")))
}

/// Creates a communicator of all processes. Its calls return errors instead of aborting.
///
/// # Safety
///
/// MPI is initialised, and every process makes the same calls.
unsafe fn duplicate() -> Result<MPI_Comm, Error> {
    // SAFETY: the caller's promise; the handle is plain data, which the call writes.
    unsafe {
        let mut comm: MPI_Comm = mem::zeroed();
        check("duplicate a communicator", MPI_Comm_dup(RSMPI_COMM_WORLD, &mut comm))?;
        check("handle errors", MPI_Comm_set_errhandler(comm, RSMPI_ERRORS_RETURN))?;
        Ok(comm)
    }
}
