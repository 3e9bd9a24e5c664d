//! Values that all ranks must have in common.

use crate::comm::{Communicator, gather_words};
use sparseop::Error;

/// Words below this are numbers, not hashes.
const NUMBERS: u64 = 1 << 48;

/// Checks that a text, such as settings, is the same at all ranks. All ranks call it.
///
/// # Errors
///
/// [`Error::RanksDiffer`] at every rank, with `what` and the numbers of two ranks;
/// [`Error::RankFailed`] and [`Error::Communication`].
pub fn check_equal(comm: &dyn Communicator, what: &str, text: &str) -> Result<(), Error> {
    check_equal_words(comm, &[(what, hash(text.as_bytes()))])
}

/// Checks that numbers are the same at all ranks, each with a description of what it is or stands
/// for.
pub(crate) fn check_equal_words(
    comm: &dyn Communicator,
    compared: &[(&str, u64)],
) -> Result<(), Error> {
    let own: Vec<u64> = compared.iter().map(|(_, word)| *word).collect();
    let all = gather_words(comm, &own)?;
    for (at, (what, _)) in compared.iter().enumerate() {
        if let Some(rank) = all.iter().position(|words| words[at] != all[0][at]) {
            let (first, other) = (all[0][at], all[rank][at]);
            // A hash says nothing.
            let numbers = match first.max(other) < NUMBERS {
                true => format!(" ({first} and {other})"),
                false => String::new(),
            };
            let message = format!(
                "ranks 0 and {rank} have different {what}{numbers}; start them with the same \
                 program, matrix and options"
            );
            return Err(Error::RanksDiffer { message });
        }
    }
    Ok(())
}

/// The version of this library, to be compared.
pub(crate) fn version() -> (&'static str, u64) {
    version_of(env!("CARGO_PKG_VERSION"))
}

fn version_of(version: &str) -> (&'static str, u64) {
    ("versions of sparseop", hash(version.as_bytes()))
}

/// Hash of bytes, the same on every machine.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::{ThreadRank, on_threads};
    use std::sync::Mutex;
    use std::time::Duration;

    #[test]
    fn ranks_of_other_versions_are_refused_at_every_rank() {
        let ranks = ThreadRank::group(3, Duration::from_secs(60), None);
        let refused = Mutex::new(Vec::new());
        on_threads(&ranks, ranks.clone(), |rank| {
            let own = if rank.rank() == 1 { version_of("0.0.9") } else { version() };
            let error = check_equal_words(&*rank, &[("numbers", 7), own]).unwrap_err();
            refused.lock().unwrap().push(error);
            Ok(())
        })
        .unwrap();
        let refused = refused.into_inner().unwrap();
        assert_eq!(refused.len(), 3);
        for error in refused {
            assert!(matches!(error, Error::RanksDiffer { .. }), "{error}");
            let expected = "ranks 0 and 1 have different versions of sparseop; start them";
            assert!(error.to_string().contains(expected), "{error}");
        }
    }
}
