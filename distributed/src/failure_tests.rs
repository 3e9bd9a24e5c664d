//! Failures of ranks: an error at every rank, within the time limit.

use crate::balance::Balance;
use crate::builder::DistributedBuilder;
use crate::choice::RowLengths;
use crate::comm::{Communicator, agree, gather_words};
use crate::part::{PartOp, PartSettings};
use crate::threads::{ThreadRank, on_threads};
use sparseop::matrix::{CsrMatrix, gallery};
use sparseop::{Error, ErrorKind, Scalar, SparseOpBuilder};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(1);

/// Errors of all ranks.
pub(crate) fn errors(
    ranks: &[Arc<ThreadRank>],
    body: impl Fn(&Arc<ThreadRank>) -> Result<(), Error> + Sync,
) -> Vec<Option<Error>> {
    let found = Mutex::new((0..ranks.len()).map(|_| None).collect::<Vec<_>>());
    let begin = Instant::now();
    let _ = on_threads(ranks, ranks.to_vec(), |rank| {
        let result = body(&rank);
        let failed = if result.is_err() { Err(()) } else { Ok(()) };
        found.lock().unwrap()[rank.rank()] = result.err();
        failed.map_err(|()| Error::Communication { message: String::new() })
    });
    // The limit, and time for threads that begin late on a busy machine.
    assert!(begin.elapsed() < LIMIT + Duration::from_secs(4), "{:?}", begin.elapsed());
    found.into_inner().unwrap()
}

fn part<T: Scalar>(rank: &Arc<ThreadRank>, offsets: &[usize], own: usize) -> Result<(), Error> {
    let settings = PartSettings::new(SparseOpBuilder::new());
    let a = CsrMatrix::<T>::zeros(own, offsets[offsets.len() - 1]).unwrap();
    PartOp::build(rank.clone(), &settings, offsets.into(), offsets.into(), a.view()).map(drop)
}

#[test]
fn a_rank_that_ends_is_an_error_at_every_other_one() {
    let ranks = ThreadRank::group(4, LIMIT, None);
    let found = errors(&ranks, |rank| match rank.rank() {
        2 => Ok(()),
        _ => loop {
            gather_words(&**rank, &[1])?;
        },
    });
    assert!(found[2].is_none());
    for rank in [0, 1, 3] {
        let error = found[rank].as_ref().unwrap();
        assert_eq!(error.kind(), ErrorKind::Communication, "{error}");
    }
    let timeout = found.iter().flatten().find(|e| matches!(e, Error::Communication { .. }));
    let message = timeout.unwrap().to_string();
    assert!(message.contains("no message from rank 2 within 1 s"), "{message}");
}

#[test]
fn an_error_at_one_rank_is_one_at_every_rank_and_the_ranks_stay_usable() {
    let ranks = ThreadRank::group(3, Duration::from_secs(60), None);
    let found = errors(&ranks, |rank| {
        let own = match rank.rank() {
            1 => Err(Error::HostMemory { needed: 10, limit: 1 }),
            _ => Ok(()),
        };
        agree(&**rank, own)
    });
    assert_eq!(found[1].as_ref().unwrap().kind(), ErrorKind::OutOfMemory);
    for rank in [0, 2] {
        let error = found[rank].as_ref().unwrap();
        assert!(matches!(error, Error::RankFailed { rank: 1, .. }), "{error}");
        assert!(error.to_string().starts_with("rank 1 has failed: "), "{error}");
    }
    on_threads(&ranks, ranks.clone(), |rank| agree(&*rank, Ok(()))).unwrap();
}

#[test]
fn ranks_that_differ_are_refused_by_all() {
    let ranks = ThreadRank::group(3, Duration::from_secs(60), None);
    for (of_others, of_last, text) in [
        ([0, 2, 4, 7], [0, 2, 4, 6], "rows of the matrix (7 and 6)"),
        ([0, 2, 4, 6], [0, 1, 4, 6], "partitions of the rows"),
    ] {
        let differing = errors(&ranks, |rank| {
            part::<f64>(rank, if rank.rank() == 2 { &of_last } else { &of_others }, 2)
        });
        for error in &differing {
            let message = error.as_ref().unwrap().to_string();
            assert!(message.contains(&format!("ranks 0 and 2 have different {text}")), "{message}");
        }
    }
    let cut = errors(&ranks, |rank| part::<f64>(rank, &[0, 3, 6], 2));
    for error in &cut {
        let message = error.as_ref().unwrap().to_string();
        assert!(message.contains("there are 2 parts for 3 ranks"), "{message}");
    }
    let types = errors(&ranks, |rank| match rank.rank() {
        1 => part::<f32>(rank, &[0, 2, 4, 6], 2),
        _ => part::<f64>(rank, &[0, 2, 4, 6], 2),
    });
    for error in &types {
        let error = error.as_ref().unwrap();
        assert!(matches!(error, Error::RanksDiffer { .. }), "{error}");
        assert!(error.to_string().contains("bytes of a number (8 and 4)"), "{error}");
    }
    let short = errors(&ranks, |rank| part::<f64>(rank, &[0, 2, 4, 6], 1 + rank.rank() % 2));
    assert!(short.iter().all(Option::is_some), "{short:?}");
    assert!(matches!(short[0], Some(Error::RanksDiffer { .. })), "{short:?}");
    assert!(matches!(short[1], Some(Error::RankFailed { rank: 0, .. })), "{short:?}");
}

#[test]
fn matrices_that_differ_are_refused_before_rows_are_exchanged() {
    fn generated<T: Scalar>(name: &str) -> CsrMatrix<T> {
        name.parse::<gallery::Spec>().unwrap().generate().unwrap()
    }
    fn build<T: Scalar>(
        rank: &Arc<ThreadRank>,
        a: &CsrMatrix<T>,
        balance: Balance,
    ) -> Result<(), Error> {
        let builder = DistributedBuilder::new(3).balance(balance);
        builder.build_part_of(rank.clone(), a).map(|_| ())
    }
    let [small, large] = ["poisson2d,n=20", "poisson2d,n=70"].map(generated::<f64>);
    let single = generated::<f32>("poisson2d,n=20");
    let ranks = ThreadRank::group(3, Duration::from_secs(60), None);
    for balance in [Balance::Entries, Balance::PredictedTime] {
        let shapes = errors(&ranks, |rank| match rank.rank() {
            1 => build(rank, &large, balance),
            _ => build(rank, &small, balance),
        });
        let types = errors(&ranks, |rank| match rank.rank() {
            1 => build(rank, &single, balance),
            _ => build(rank, &small, balance),
        });
        let said = ["rows of the matrix (400 and 4900)", "bytes of a number (8 and 4)"];
        for (found, said) in [shapes, types].iter().zip(said) {
            for error in found.iter().map(|error| error.as_ref().unwrap()) {
                assert!(matches!(error, Error::RanksDiffer { .. }), "{error}");
                assert!(error.to_string().contains(said), "{error}");
            }
        }
    }
    let balances = errors(&ranks, |rank| match rank.rank() {
        1 => build(rank, &small, Balance::PredictedTime),
        _ => build(rank, &small, Balance::Entries),
    });
    for error in balances.iter().map(|error| error.as_ref().unwrap()) {
        assert!(error.to_string().contains("different balances of the parts"), "{error}");
    }
}

#[test]
fn a_panic_of_a_part_reaches_the_caller() {
    let ranks = ThreadRank::group(3, Duration::from_secs(60), None);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        on_threads(&ranks, ranks.clone(), |rank| {
            assert_ne!(rank.rank(), 1, "on purpose");
            gather_words(&*rank, &[0]).map(|_| ())
        })
    }));
    assert!(panicked.is_err());
    on_threads(&ranks, ranks.clone(), |rank| gather_words(&*rank, &[0]).map(|_| ())).unwrap();
}

#[test]
fn little_memory_at_one_part_is_an_error_at_all() {
    let a = "poisson2d,n=20".parse::<gallery::Spec>().unwrap().generate::<f64>().unwrap();
    assert_eq!(RowLengths::of(a.row_ptr()).entries as usize, a.nnz());
    let ranks = ThreadRank::group(2, Duration::from_secs(60), None);
    let offsets: Arc<[usize]> = [0, 200, 400].into();
    let found = errors(&ranks, |rank| {
        let limit = if rank.rank() == 0 { 1 << 30 } else { 64 };
        let builder = SparseOpBuilder::new().memory_limit(limit);
        let settings = PartSettings::new(builder);
        let own: Vec<u32> = (0..200).map(|row| row + 200 * rank.rank() as u32).collect();
        let own = crate::rows::RowSelection::unchanged(a.view(), &own)?;
        let (rows, columns) = (offsets.clone(), offsets.clone());
        PartOp::build(rank.clone(), &settings, rows, columns, own.view()?).map(|_| ())
    });
    assert_eq!(found[1].as_ref().unwrap().kind(), ErrorKind::OutOfMemory, "{found:?}");
    assert!(matches!(found[0], Some(Error::RankFailed { rank: 1, .. })), "{found:?}");
}
