//! Calls of MPI, and the buffers of their messages.

use crate::deadline::Deadline;
use mpi::environment::Universe;
use mpi::ffi::{
    MPI_Comm, MPI_Comm_idup, MPI_Comm_set_errhandler, MPI_Get_count, MPI_Iprobe, MPI_Irecv,
    MPI_Isend, MPI_Recv, MPI_Request, MPI_Request_free, MPI_Status, MPI_Test, RSMPI_ANY_SOURCE,
    RSMPI_COMM_WORLD, RSMPI_ERRORS_RETURN, RSMPI_REQUEST_NULL, RSMPI_STATUS_IGNORE, RSMPI_UINT8_T,
};
use sparseop::Error;
use std::mem;
use std::os::raw::c_int;
use std::thread;
use std::time::Duration;

/// Largest number of bytes of a message; more are sent in several, because MPI counts in 32 bits.
pub(super) const MESSAGE_BYTES: usize = 1 << 30;

/// Tag of all messages.
const TAG: c_int = 0;

/// Largest number of bytes of a notice.
const NOTICE_BYTES: usize = 1000;

/// Bytes of a message buffer that is kept for the next messages.
const KEPT_BYTES: usize = 64 << 20;

/// Communicators and buffers of a rank.
pub(super) struct MpiState {
    pub(super) messages: MPI_Comm,
    pub(super) notices: MPI_Comm,
    /// For the end, when every rank has dropped its last reference.
    pub(super) farewell: MPI_Comm,
    /// Rank and message of the first failure.
    pub(super) failure: Option<(usize, String)>,
    pub(super) sent: Vec<u8>,
    pub(super) received: Vec<u8>,
    /// Finalises MPI when it is dropped. None after a failure, and if the caller has initialised
    /// MPI.
    pub(super) universe: Option<Universe>,
}

// SAFETY: the handles of MPI are used with the lock of the state held, as the requested level of
// threading demands.
unsafe impl Send for MpiState {}

impl MpiState {
    /// Polls for a notice: the error of another rank.
    ///
    /// # Errors
    ///
    /// [`Error::RankFailed`] if a notice has arrived.
    pub(super) fn poll_notices(&mut self) -> Result<(), Error> {
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
    pub(super) fn notify(&self, own: usize, size: usize, message: &str) {
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
    pub(super) fn abandon(&mut self) {
        mem::forget(mem::take(&mut self.sent));
        mem::forget(mem::take(&mut self.received));
        mem::forget(self.universe.take());
    }

    /// Makes room for bytes to send, and for bytes that are received.
    pub(super) fn make_room(&mut self, [sent, received]: [usize; 2]) -> Result<(), Error> {
        self.sent.clear();
        if self.sent.capacity() < sent {
            self.sent = sparseop::reserved(sent)?;
        }
        if self.received.capacity() < received {
            self.received = sparseop::try_zeroed(received)?;
        }
        self.received.resize(received, 0);
        Ok(())
    }

    /// Frees large buffers after a complete call.
    pub(super) fn release(&mut self) {
        for buffer in [&mut self.sent, &mut self.received] {
            if buffer.capacity() > KEPT_BYTES {
                *buffer = Vec::new();
            }
        }
    }

    /// Starts to send or to receive the parts of a buffer, given by rank and length, in messages of
    /// at most [`MESSAGE_BYTES`].
    pub(super) fn start(
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

pub(super) fn failure(message: &str) -> Error {
    Error::Communication { message: message.to_owned() }
}

/// Converts the return code of a call of MPI.
pub(super) fn check(action: &str, code: c_int) -> Result<(), Error> {
    if code == 0 {
        return Ok(());
    }
    Err(failure(&format!("MPI cannot {action}: error {code}; another rank may have ended")))
}

/// Creates a communicator of all processes, for which it waits up to a limit. Its calls return
/// errors instead of aborting.
///
/// # Safety
///
/// MPI is initialised, and every process makes the same calls.
pub(super) unsafe fn duplicate(limit: Duration) -> Result<MPI_Comm, Error> {
    let deadline = Deadline::new(limit);
    // SAFETY: the caller's promise; the handle is plain data, which lives as long as the process,
    // because MPI writes it before or after the limit.
    unsafe {
        let comm: &'static mut MPI_Comm = Box::leak(Box::new(mem::zeroed()));
        let mut request = RSMPI_REQUEST_NULL;
        let started = MPI_Comm_idup(RSMPI_COMM_WORLD, comm, &mut request);
        check("duplicate a communicator", started)?;
        let mut done = 0;
        loop {
            let tested = MPI_Test(&mut request, &mut done, RSMPI_STATUS_IGNORE);
            check("duplicate a communicator", tested)?;
            if done != 0 {
                break;
            }
            if deadline.left().is_zero() {
                return Err(deadline.error("another rank"));
            }
            thread::sleep(Duration::from_micros(50));
        }
        check("handle errors", MPI_Comm_set_errhandler(*comm, RSMPI_ERRORS_RETURN))?;
        Ok(*comm)
    }
}
