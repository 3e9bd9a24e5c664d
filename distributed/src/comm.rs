//! Messages among the parts of an operator.

use sparseop::{Error, Scalar, listed, try_zeroed};
use std::fmt::Debug;
use std::time::Duration;

/// Messages among the parts of an operator, each of which runs on a thread or in a process of its
/// own, and is a *rank*. All ranks make the same calls in the same order.
///
/// After an error every later call is an error at all ranks.
pub trait Communicator: Debug + Send + Sync {
    /// Number of this rank, from 0.
    fn rank(&self) -> usize;

    /// Number of ranks.
    fn size(&self) -> usize;

    /// Sends and receives messages, whose lengths both sides know, and calls `meanwhile` while they
    /// are in transit. There is at most one message from a rank to another.
    ///
    /// # Errors
    ///
    /// [`Error::RankFailed`] if another rank has called [`fail`](Self::fail);
    /// [`Error::Communication`] if a message does not arrive within the time limit.
    fn exchange(
        &self,
        sends: &[(usize, &[u8])],
        receives: &mut [(usize, &mut [u8])],
        meanwhile: &mut dyn FnMut(),
    ) -> Result<(), Error>;

    /// Gathers bytes of all ranks, in the order of the ranks. `lengths` has the number of bytes of
    /// each.
    ///
    /// # Errors
    ///
    /// As [`exchange`](Self::exchange).
    fn all_gather(&self, own: &[u8], lengths: &[usize]) -> Result<Vec<u8>, Error>;

    /// Reports an error of this rank to all others, whose current or next call returns it.
    fn fail(&self, message: &str);

    /// Looks for an error that another rank has reported, without waiting.
    ///
    /// # Errors
    ///
    /// [`Error::RankFailed`].
    fn check(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Time after which a rank no longer waits for the others, if this sets one.
    fn time_limit(&self) -> Option<Duration> {
        None
    }
}

/// Bytes of numbers.
pub(crate) fn bytes_of<T: Scalar>(numbers: &[T]) -> &[u8] {
    // SAFETY: scalars are `f32` or `f64`, which have no padding; the length is that of the slice.
    unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast(), size_of_val(numbers)) }
}

/// Bytes of numbers, to be overwritten.
pub(crate) fn bytes_of_mut<T: Scalar>(numbers: &mut [T]) -> &mut [u8] {
    // SAFETY: as `bytes_of`; any bytes are a number.
    unsafe { std::slice::from_raw_parts_mut(numbers.as_mut_ptr().cast(), size_of_val(numbers)) }
}

/// Gathers the numbers of all ranks, equally many of each, in the order of the ranks.
pub(crate) fn gather_words(comm: &dyn Communicator, own: &[u64]) -> Result<Vec<Vec<u64>>, Error> {
    let lengths = vec![size_of_val(own); comm.size()];
    let all = comm.all_gather(bytemuck::cast_slice(own), &lengths)?;
    let words: Vec<u64> =
        all.chunks_exact(size_of::<u64>()).map(bytemuck::pod_read_unaligned).collect();
    Ok(match own.len() {
        0 => vec![Vec::new(); comm.size()],
        count => words.chunks(count).map(<[u64]>::to_vec).collect(),
    })
}

/// Adds numbers of all ranks, element by element.
pub(crate) fn sum_words(comm: &dyn Communicator, own: &[u64]) -> Result<Vec<u64>, Error> {
    // Each rank adds a range of the numbers: none has those of all ranks.
    let (size, rank) = (comm.size(), comm.rank());
    let range = |rank: usize| own.len() * rank / size..own.len() * (rank + 1) / size;
    let len = range(rank).len();
    let sends = (0..size).map(|to| bytemuck::cast_slice(&own[range(to)]));
    let sends: Vec<(usize, &[u8])> = others(comm, sends).collect();
    let mut words = reported(comm, try_zeroed::<u64>(size * len))?;
    let parts = words.chunks_mut(len.max(1)).map(bytemuck::cast_slice_mut::<u64, u8>);
    let mut receives: Vec<(usize, &mut [u8])> = others(comm, parts).collect();
    comm.exchange(&sends, &mut receives, &mut || {})?;
    let mut sums = own[range(rank)].to_vec();
    for (_, words) in words.chunks(len.max(1)).enumerate().filter(|(from, _)| *from != rank) {
        sums.iter_mut().zip(words).for_each(|(sum, word)| *sum += word);
    }
    let lengths = (0..size).map(|rank| size_of::<u64>() * range(rank).len());
    let all = comm.all_gather(bytemuck::cast_slice(&sums), &lengths.collect::<Vec<_>>())?;
    Ok(all.chunks_exact(size_of::<u64>()).map(bytemuck::pod_read_unaligned).collect())
}

/// Gathers the bytes of all ranks, any number of each.
pub(crate) fn gather_bytes(comm: &dyn Communicator, own: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
    let lengths = gather_words(comm, &[own.len() as u64])?;
    let lengths: Vec<usize> = lengths.iter().map(|length| length[0] as usize).collect();
    let all = comm.all_gather(own, &lengths)?;
    let mut rest = &all[..];
    let each = lengths.iter().map(|&length| {
        let (bytes, others) = rest.split_at(length);
        rest = others;
        listed(bytes.iter().copied())
    });
    reported(comm, each.collect())
}

/// Sends the bytes `to[r]` to rank `r`, and returns those from each rank.
pub(crate) fn all_to_all(comm: &dyn Communicator, to: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, Error> {
    let own: Vec<[u8; 8]> = to.iter().map(|bytes| (bytes.len() as u64).to_ne_bytes()).collect();
    let mut lengths = own.clone();
    let sends: Vec<(usize, &[u8])> = others(comm, own.iter().map(|l| &l[..])).collect();
    let mut receives: Vec<(usize, &mut [u8])> =
        others(comm, lengths.iter_mut().map(|length| &mut length[..])).collect();
    comm.exchange(&sends, &mut receives, &mut || {})?;
    let from = lengths.iter().map(|length| try_zeroed(u64::from_ne_bytes(*length) as usize));
    let mut from: Vec<Vec<u8>> = reported(comm, from.collect())?;
    let sends: Vec<(usize, &[u8])> = others(comm, to.iter().map(Vec::as_slice)).collect();
    let mut receives: Vec<(usize, &mut [u8])> =
        others(comm, from.iter_mut().map(Vec::as_mut_slice)).collect();
    comm.exchange(&sends, &mut receives, &mut || {})?;
    from[comm.rank()].copy_from_slice(&to[comm.rank()]);
    Ok(from)
}

/// Messages of other ranks that are not empty, with their ranks.
fn others<B: AsRef<[u8]>>(
    comm: &dyn Communicator,
    messages: impl Iterator<Item = B>,
) -> impl Iterator<Item = (usize, B)> {
    let own = comm.rank();
    messages.enumerate().filter(move |(rank, bytes)| *rank != own && !bytes.as_ref().is_empty())
}

/// Agrees on a result: an error at one rank is returned there, and the other ranks return
/// [`Error::RankFailed`].
pub(crate) fn agree<R>(comm: &dyn Communicator, own: Result<R, Error>) -> Result<R, Error> {
    let message = own.as_ref().err().map_or_else(String::new, ToString::to_string);
    let all = gather_bytes(comm, message.as_bytes());
    let result = own?;
    let all = all?;
    match all.iter().position(|message| !message.is_empty()) {
        None => Ok(result),
        Some(rank) => {
            let message = String::from_utf8_lossy(&all[rank]).into_owned();
            Err(Error::RankFailed { rank, message })
        }
    }
}

/// Returns the result of a call that other ranks wait for; an error is reported to them.
pub(crate) fn reported<R>(comm: &dyn Communicator, own: Result<R, Error>) -> Result<R, Error> {
    if let Err(error) = &own {
        comm.fail(&error.to_string());
    }
    own
}
