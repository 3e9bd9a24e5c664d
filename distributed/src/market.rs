//! Reading of a Matrix Market file in parallel: every rank reads a range of its bytes.

use crate::blocks::block_rows;
use crate::comm::{Communicator, agree, sum_words};
use crate::equality::{check_equal_words, version};
use crate::findings::FileFindings;
use crate::partition::Partition;
use crate::transpose::EntryArrays;
use sparseop::matrix::market::{MarketEntries, MarketPieces, shortened};
use sparseop::matrix::{CsrMatrix, Triplets};
use sparseop::{Device, Error, Scalar, ToCsr, reserved};
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::Path;

/// Bytes that are read at a time to find the size line, or the end of the last line of a range.
const HEAD: usize = 1 << 16;

/// First bytes of files compressed with gzip and zstd.
const COMPRESSED: [&[u8]; 2] = [&[0x1f, 0x8b], &[0x28, 0xb5, 0x2f, 0xfd]];

/// Rows of a file: the partition of all, and the own ones with the oddities of the file.
pub(crate) type ReadRows<T> = (Partition, CsrMatrix<T>, FileFindings);

/// Reads a `coordinate` file and returns the partition of its rows, by entries, and the own rows of
/// this rank. No rank holds more than its range of the text and its entries.
///
/// The result is that of [`market::read`](sparseop::matrix::market::read), whatever the number of
/// ranks.
pub(crate) fn read<T: Scalar>(comm: &dyn Communicator, path: &Path) -> Result<ReadRows<T>, Error> {
    let (size, rank) = (comm.size(), comm.rank());
    let (mut file, length, pieces) = agree(comm, open(path))?;
    let (nrows, ncols) = pieces.shape();
    check_equal_words(
        comm,
        &[
            version(),
            ("scalar types", size_of::<T>() as u64),
            ("files: lengths", length),
            ("files: rows", nrows as u64),
            ("files: columns", ncols as u64),
            ("files: entries", pieces.declared()),
        ],
    )?;
    let mut own = || {
        check_memory(path, nrows.div_ceil(size), size)?;
        let body = pieces.body() as u64;
        let at =
            |rank: usize| body + (u128::from(length - body) * rank as u128 / size as u128) as u64;
        let lines = lines(&mut file, path, body, at(rank)..at(rank + 1))?;
        pieces.entries::<T>(path, &lines)
    };
    let MarketEntries { rows, columns, values, lines, above } = agree(comm, own())?;
    let count = |is: fn(f64) -> bool| values.iter().filter(|v| is(v.to_f64())).count() as u64;
    let counts = [lines, above, count(f64::is_nan), count(f64::is_infinite)];
    let counts = sum_words(comm, &counts)?;
    let lines = counts[0];
    let findings = FileFindings { above_diagonal: counts[1], nan: counts[2], infinite: counts[3] };
    let entries = EntryArrays { rows, columns, values };
    if lines != pieces.declared() {
        let message = format!("the file declares {} entries, but has {lines}", pieces.declared());
        return Err(Error::Market { path: path.to_owned(), line: None, message });
    }
    let partition = by_entries(comm, nrows, &entries.rows)?;
    let entries = entries.redistribute(comm, partition.offsets())?;
    let assembled = || {
        let rows = partition.rows(rank).len();
        Triplets::from_parts(rows, ncols, entries.rows, entries.columns, entries.values)
            .and_then(|entries| Ok(ToCsr::to_csr(&entries)?.into_owned()))
    };
    let own = agree(comm, assembled())?;
    Ok((partition, own, findings))
}

/// Checks that a rank has memory for the offsets of its rows.
fn check_memory(path: &Path, rows: usize, ranks: usize) -> Result<(), Error> {
    let (bytes, limit) = (rows as u64 * size_of::<usize>() as u64, Device::Cpu.memory()?);
    if bytes <= limit {
        return Ok(());
    }
    let message = format!(
        "{rows} rows on each of {ranks} ranks take {bytes} bytes at least, above the limit of \
         {limit}; use more hosts"
    );
    Err(Error::Market { path: path.to_owned(), line: None, message })
}

/// Partition of the rows by their entries, which are distributed over the ranks in any way.
pub(crate) fn by_entries(
    comm: &dyn Communicator,
    nrows: usize,
    rows: &[u32],
) -> Result<Partition, Error> {
    let block = block_rows(nrows);
    let mut counts = vec![0; nrows.div_ceil(block)];
    rows.iter().for_each(|&row| counts[row as usize / block] += 1);
    let mut work = sum_words(comm, &counts)?;
    for (number, work) in work.iter_mut().enumerate() {
        *work += block.min(nrows - number * block) as u64;
    }
    Partition::of_blocks(nrows, comm.size(), &work)
}

/// Opens a file, and reads its banner and size line.
fn open(path: &Path) -> Result<(File, u64, MarketPieces), Error> {
    let io = |action| move |source| Error::Io { action, path: path.to_owned(), source };
    let mut file = sparseop::open_regular(path).map_err(io("open"))?;
    let length = file.metadata().map_err(io("read"))?.len();
    let mut head = Vec::new();
    loop {
        let before = head.len();
        (&mut file).take(HEAD.max(before) as u64).read_to_end(&mut head).map_err(io("read"))?;
        let whole = head.len() as u64 >= length || head.len() == before;
        if COMPRESSED.iter().any(|magic| head.starts_with(magic)) {
            let message =
                "a compressed file is not read by several ranks; decompress it".to_owned();
            return Err(Error::Market { path: path.to_owned(), line: None, message });
        }
        match MarketPieces::parse(path, &head) {
            // The comments or the size line may continue behind the bytes read.
            Ok(pieces) if whole || pieces.body() < head.len() => return Ok((file, length, pieces)),
            Err(error) if whole => return Err(error),
            _ => {}
        }
    }
}

/// The lines that begin in a range of bytes.
fn lines(
    file: &mut File,
    path: &Path,
    body: u64,
    range: std::ops::Range<u64>,
) -> Result<Vec<u8>, Error> {
    let failed = |source| Error::Io { action: "read", path: path.to_owned(), source };
    // Begins one byte before the range: a line end there means that the range begins with a line.
    let from = range.start.saturating_sub(1).max(body);
    let mut text = sparseop::try_zeroed::<u8>((range.end - from) as usize)?;
    file.seek(SeekFrom::Start(from))
        .and_then(|_| file.read_exact(&mut text))
        .map_err(|error| failed(shortened(error)))?;
    let skipped = match from < range.start {
        false => 0,
        true => text.iter().position(|&byte| byte == b'\n').map_or(text.len(), |end| end + 1),
    };
    if skipped == text.len() {
        return Ok(Vec::new());
    }
    let mut more = [0; HEAD];
    while text.last() != Some(&b'\n') {
        let count = match file.read(&mut more) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(failed(error)),
        };
        let end = more[..count].iter().position(|&byte| byte == b'\n');
        let rest = &more[..end.map_or(count, |end| end + 1)];
        extend(&mut text, rest)?;
    }
    text.drain(..skipped);
    Ok(text)
}

/// Appends bytes.
///
/// # Errors
///
/// [`Error::HostMemory`].
fn extend(to: &mut Vec<u8>, bytes: &[u8]) -> Result<(), Error> {
    if to.capacity() - to.len() < bytes.len() {
        // As much again, as for any growing vector.
        let mut longer = reserved(2 * to.len().max(bytes.len()))?;
        longer.append(to);
        *to = longer;
    }
    to.extend_from_slice(bytes);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure_tests::errors;
    use crate::threads::{ThreadRank, on_threads};
    use sparseop::matrix::{gallery, market};
    use std::time::Duration;

    /// Reads a text with the given number of ranks, and joins their rows.
    fn read_by(ranks: usize, path: &Path) -> Result<CsrMatrix<f64>, Error> {
        let ranks = ThreadRank::group(ranks, Duration::from_secs(20), None);
        let parts = on_threads(&ranks, ranks.clone(), |rank| read::<f64>(&*rank, path))?;
        let (mut row_ptr, mut columns, mut values) = (vec![0], Vec::new(), Vec::new());
        let ncols = parts[0].1.ncols();
        for (part, (partition, own, _)) in parts.iter().enumerate() {
            assert_eq!(partition.rows(part).len(), own.nrows());
            let before = columns.len();
            row_ptr.extend(own.row_ptr()[1..].iter().map(|end| end + before));
            columns.extend_from_slice(own.col_idx());
            values.extend_from_slice(own.values());
        }
        CsrMatrix::try_new(row_ptr.len() - 1, ncols, row_ptr, columns, values)
    }

    fn file(name: &str, text: impl AsRef<[u8]>) -> std::path::PathBuf {
        let folder = std::env::temp_dir().join(format!("sparseop-ranges-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    #[test]
    fn ranges_give_the_matrix_of_one_reader() {
        let folder = file("any", "");
        let generated = folder.with_file_name("generated.mtx");
        let a = "webbase,rows=500".parse::<gallery::Spec>().unwrap().generate::<f64>().unwrap();
        market::write(&generated, a.view()).unwrap();
        let comments = format!(
            "%%MatrixMarket matrix coordinate real symmetric\n{}3 3 4\n1 1 2\n2 1 -1.5\n\n3 3 1e0\n\
             % end\n2 1 1",
            "% a long comment\n".repeat(HEAD / 10)
        );
        let header = "%%MatrixMarket matrix coordinate pattern general\n";
        for path in [
            generated,
            file("comments.mtx", comments),
            file("empty.mtx", format!("{header}0 0 0\n")),
            file("wide.mtx", format!("{header}2 9 3\n1 9\n2 1\n1 1\n")),
            file("blank.mtx", format!("{header}3 3 1\n\n\n\n3 3\n\n")),
        ] {
            let expected = market::read::<f64>(&path).unwrap();
            for ranks in [1, 2, 3, 4, 9] {
                assert_eq!(read_by(ranks, &path).unwrap(), expected, "{}", path.display());
            }
        }
    }

    #[test]
    fn bad_files_are_errors_at_every_rank() {
        let general = "%%MatrixMarket matrix coordinate real general\n";
        for (name, text, expected) in [
            ("few.mtx", format!("{general}2 2 3\n1 1 1\n2 2 1\n"), "declares 3 entries, but has 2"),
            ("bad.mtx", format!("{general}2 2 2\n1 1 1\n2 5 1\n"), "in the line `2 5 1`"),
            (
                "array.mtx",
                "%%MatrixMarket matrix array real general\n1 1\n1\n".into(),
                "coordinate",
            ),
            ("no.mtx", "hello".to_owned(), "banner"),
            ("cut.mtx", general.to_owned(), "size line"),
        ] {
            let path = file(name, text);
            let error = read_by(3, &path).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
            let ranks = ThreadRank::group(3, Duration::from_secs(20), None);
            let found = errors(&ranks, |rank| read::<f64>(&**rank, &path).map(drop));
            assert!(found.iter().all(Option::is_some), "{name}: {found:?}");
        }
        let same = file("types.mtx", format!("{general}2 2 2\n1 1 1\n2 2 1\n"));
        let longer = file("longer.mtx", format!("{general}2 2 2\n1 1 1\n2 2 10\n"));
        let ranks = ThreadRank::group(3, Duration::from_secs(20), None);
        let found = errors(&ranks, |rank| match rank.rank() {
            2 => read::<f32>(&**rank, &same).map(drop),
            _ => read::<f64>(&**rank, &same).map(drop),
        });
        let is_named = |found: Vec<Option<Error>>, what: &str| {
            let mut found = found.iter();
            assert!(found.all(|e| e.as_ref().unwrap().to_string().contains(what)), "{found:?}");
        };
        is_named(found, "0 and 2 have different scalar types");
        let ranks = ThreadRank::group(3, Duration::from_secs(20), None);
        let path = |rank: usize| if rank == 1 { &longer } else { &same };
        let found = errors(&ranks, |rank| read::<f64>(&**rank, path(rank.rank())).map(drop));
        is_named(found, "0 and 1 have different files: lengths");
        let rows = file("rows.mtx", format!("{general}4000000000000 4 1\n1 1 1\n"));
        let message = read_by(2, &rows).unwrap_err().to_string();
        assert!(message.contains("rows"), "{message}");
        let compressed = read_by(2, &file("a.mtx.gz", [0x1f, 0x8b, 8, 0])).unwrap_err();
        assert!(compressed.to_string().contains("decompress it"), "{compressed}");
        let missing = read_by(2, Path::new("/nowhere/a.mtx")).unwrap_err().to_string();
        assert!(missing.starts_with("cannot open"), "{missing}");
    }
}
