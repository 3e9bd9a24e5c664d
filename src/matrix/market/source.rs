//! Text of a Matrix Market file, from its path: read, decompressed, extracted from its archive.
//!
//! Files are read and never mapped: a mapped file that another process truncates would end this
//! process.

use super::header::has_banner;
use super::{ParseProblem, ReadStage, Reader};
use crate::{Error, memory};
use flate2::bufread::MultiGzDecoder;
use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufReader, Cursor, Read};
use std::path::{Path, PathBuf};

const GZIP_MAGIC: &[u8] = &[0x1f, 0x8b];
const ZSTD_MAGIC: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
/// A tar archive begins with a header block, and every header since POSIX.1-1988 has this word at
/// this offset.
const TAR_BLOCK: usize = 512;
const TAR_MAGIC: (usize, &[u8]) = (257, b"ustar");

/// Size of the buffer of compressed bytes.
const BUFFER: usize = 1 << 18;

/// Maximum size of the headers of a file in an archive, which hold its name.
const HEADERS: u64 = 1 << 20;

/// Maximum number of matrices in an archive.
const MATRICES: usize = 1000;

/// Opens a file and decompresses it if necessary.
pub(super) fn open(path: &Path, reader: &Reader<'_>) -> Result<Vec<u8>, Error> {
    let mut file = File::open(path).map_err(|e| Error::io("open", path, e))?;
    let metadata = file.metadata().map_err(|e| Error::io("open", path, e))?;
    if metadata.is_dir() {
        return Err(Error::io("read", path, io::ErrorKind::IsADirectory.into()));
    }
    let start = start_of(&mut file).map_err(|e| Error::io("read", path, e))?;
    let compressed = start.starts_with(GZIP_MAGIC) || start.starts_with(ZSTD_MAGIC);
    if !compressed && !is_tar(&start) {
        return read_plain(path, reader, start, file, metadata.len());
    }
    let gzip = start.starts_with(GZIP_MAGIC);
    let bytes = Cursor::new(start).chain(file);
    if !compressed {
        return unpack(path, reader, BufReader::with_capacity(BUFFER, bytes));
    }
    let watched = Watched { bytes, total: metadata.len(), done: 0, reported: 0, reader };
    let mut text: Box<dyn Read> = if gzip {
        Box::new(MultiGzDecoder::new(BufReader::with_capacity(BUFFER, watched)))
    } else {
        zstd_decoder(watched).map_err(|e| Error::io("decompress", path, e))?
    };
    let start = start_of(&mut text).map_err(|e| Error::io("decompress", path, e))?;
    let archive = is_tar(&start);
    let text = Cursor::new(start).chain(text);
    if archive { unpack(path, reader, text) } else { read_all("decompress", path, reader, text) }
}

/// The first bytes, enough to recognise an archive.
fn start_of(bytes: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut start = Vec::with_capacity(TAR_BLOCK);
    bytes.take(TAR_BLOCK as u64).read_to_end(&mut start)?;
    Ok(start)
}

#[cfg(feature = "zstd")]
fn zstd_decoder<'a>(compressed: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
    Ok(Box::new(zstd::Decoder::new(compressed)?))
}

#[cfg(not(feature = "zstd"))]
fn zstd_decoder<'a>(_: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
    Err(io::Error::new(io::ErrorKind::Unsupported, super::NO_ZSTD))
}

/// Reads a text that is not compressed, of `len` bytes according to the system and beginning with
/// `start`. Pipes and files such as those of `/proc` report no length.
fn read_plain(
    path: &Path,
    reader: &Reader<'_>,
    start: Vec<u8>,
    file: File,
    len: u64,
) -> Result<Vec<u8>, Error> {
    if len > reader.memory_limit {
        return Err(too_long(path, reader));
    }
    #[cfg(unix)]
    if len >= parallel::LEAST {
        let text = parallel::read(&file, len as usize)?;
        return text.map_err(|e| Error::io("read", path, e));
    }
    let mut text = memory::reserved(usize::try_from(len).unwrap_or(usize::MAX))?;
    text.extend_from_slice(&start);
    append(text, "read", path, reader, file)
}

/// Reading of large files by several threads. Half of the time is that of mapping memory, which
/// threads do at the same time.
#[cfg(unix)]
pub(super) mod parallel {
    use crate::parallel::try_for_each_item;
    use crate::{Error, memory};
    use std::fs::File;
    use std::io;
    use std::os::unix::fs::FileExt;

    /// Size from which a file is read by several threads, in bytes.
    pub(super) const LEAST: u64 = 1 << 23;

    /// Bytes that a thread reads at a time.
    const PIECE: usize = 1 << 21;

    /// Reads the first `len` bytes. A file that has become shorter is an error of the inner result.
    pub(in super::super) fn read(file: &File, len: usize) -> Result<io::Result<Vec<u8>>, Error> {
        let mut text = memory::try_zeroed(len)?;
        let pieces = text.chunks_mut(PIECE).enumerate();
        let read =
            try_for_each_item(pieces, |(k, piece)| file.read_exact_at(piece, (k * PIECE) as u64));
        Ok(read.map(|()| text))
    }
}

fn is_tar(start: &[u8]) -> bool {
    let (offset, magic) = TAR_MAGIC;
    start.get(offset..).is_some_and(|rest| rest.starts_with(magic)) && !has_banner(start)
}

/// Reads bytes to their end, up to the limit.
fn read_all(
    action: &'static str,
    path: &Path,
    reader: &Reader<'_>,
    text: impl Read,
) -> Result<Vec<u8>, Error> {
    append(Vec::new(), action, path, reader, text)
}

/// Appends bytes to their end, up to the limit.
fn append(
    mut bytes: Vec<u8>,
    action: &'static str,
    path: &Path,
    reader: &Reader<'_>,
    text: impl Read,
) -> Result<Vec<u8>, Error> {
    let left = reader.memory_limit.saturating_sub(bytes.len() as u64);
    let read = text.take(left.saturating_add(1)).read_to_end(&mut bytes);
    read.map_err(|e| match e.kind() {
        // The vector cannot grow any more.
        io::ErrorKind::OutOfMemory => {
            Error::HostMemory { needed: 2 * bytes.capacity() as u64, limit: memory::limit() }
        }
        _ => Error::io(action, path, e),
    })?;
    if bytes.len() as u64 > reader.memory_limit {
        return Err(too_long(path, reader));
    }
    Ok(bytes)
}

fn too_long(path: &Path, reader: &Reader<'_>) -> Error {
    let limit = reader.memory_limit;
    let message = format!("the text is above the limit of {limit} bytes");
    ParseProblem::new(message).locate(path, &[])
}

/// Extracts the matrix from an archive: the file `NAME.mtx` of a folder or an archive `NAME`, else
/// the only `.mtx`.
fn unpack(path: &Path, reader: &Reader<'_>, archive: impl Read) -> Result<Vec<u8>, Error> {
    let broken = |e| Error::io("unpack", path, e);
    // Of headers the archive reader holds everything in memory.
    let headers = HEADERS.min(reader.memory_limit.max(8 * TAR_BLOCK as u64));
    let left = Cell::new(headers);
    let mut archive = tar::Archive::new(Metered { bytes: archive, left: &left });
    let (mut names, mut text, mut wanted) = (Vec::<PathBuf>::new(), None, false);
    for entry in archive.entries().map_err(broken)? {
        let mut entry = entry.map_err(broken)?;
        left.set(u64::MAX);
        let name = entry.path().map_err(broken)?.into_owned();
        if entry.header().entry_type().is_file() && is_plain_matrix(&name) {
            wanted = is_namesake(&name, path);
            names.push(name);
            if wanted || names.len() == 1 {
                let size = entry.size();
                let bytes = read_all("unpack", path, reader, &mut entry)?;
                // The archive reader does not report a file that ends early.
                if (bytes.len() as u64) < size {
                    return Err(broken(io::ErrorKind::UnexpectedEof.into()));
                }
                text = Some(bytes);
            }
        }
        if wanted || names.len() == MATRICES {
            break;
        }
        // The rest of the file, so that only headers follow.
        io::copy(&mut entry, &mut io::sink()).map_err(broken)?;
        left.set(headers);
    }
    left.set(u64::MAX);
    // The checksum of the data is at the end.
    io::copy(&mut archive.into_inner(), &mut io::sink()).map_err(broken)?;
    text.filter(|_| wanted || names.len() == 1).ok_or_else(|| no_choice(&names).locate(path, &[]))
}

/// Bytes of which a limited number may be read.
struct Metered<'a, R> {
    bytes: R,
    left: &'a Cell<u64>,
}

impl<R: Read> Read for Metered<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = usize::try_from(self.left.get()).unwrap_or(usize::MAX).min(buffer.len());
        if len == 0 && !buffer.is_empty() {
            return Err(io::Error::other("the headers of a file in the archive are too long"));
        }
        let read = self.bytes.read(&mut buffer[..len])?;
        self.left.set(self.left.get() - read as u64);
        Ok(read)
    }
}

/// Error: none of the matrices in an archive was selected.
fn no_choice(names: &[PathBuf]) -> ParseProblem {
    if names.is_empty() {
        return ParseProblem::new("the archive has no .mtx file");
    }
    let names: Vec<_> = names.iter().map(|name| name.display().to_string()).collect();
    let message =
        "the archive has several .mtx files and none is named like its folder; unpack one of";
    ParseProblem::new(format!("{message} {}", names.join(", ")))
}

/// True if a file in an archive is a matrix; names with a leading dot are added by macOS.
fn is_plain_matrix(name: &Path) -> bool {
    let hidden = name.file_name().is_none_or(|file| file.as_encoded_bytes().starts_with(b"."));
    !hidden && name.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("mtx"))
}

/// True if a file in an archive is named like its folder or like the archive.
fn is_namesake(name: &Path, archive: &Path) -> bool {
    let stem = name.file_stem().unwrap_or_default();
    let folder = name.parent().and_then(Path::file_name);
    let archive = archive.file_name().unwrap_or_default().to_string_lossy();
    let archive =
        [".tar.gz", ".tgz", ".tar.zst", ".tar"].iter().find_map(|end| archive.strip_suffix(end));
    folder == Some(stem) || archive.is_some_and(|archive| archive == stem)
}

/// Compressed bytes whose reading is reported as progress.
struct Watched<'a, R> {
    bytes: R,
    /// Size of the file; 0 if it is unknown.
    total: u64,
    done: u64,
    /// Bytes that were done at the last report.
    reported: u64,
    reader: &'a Reader<'a>,
}

impl<R: Read> Read for Watched<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        /// Bytes between reports.
        const STEP: u64 = 1 << 20;
        let len = self.bytes.read(buffer)?;
        self.done += len as u64;
        if self.done - self.reported >= STEP || (len > 0 && self.done == self.total) {
            self.reported = self.done;
            self.reader.report(ReadStage::Decompress, self.done, self.total.max(self.done));
        }
        Ok(len)
    }
}
