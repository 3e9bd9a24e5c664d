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

/// Bytes of a file that are read one after the other.
pub(super) trait ByteStream {
    /// Verb of the error message: `read` or `decompress`.
    fn action(&self) -> &'static str;

    /// Number of bytes left, if it is known.
    fn left(&self) -> Option<u64>;

    /// Fills a buffer, unless the bytes end before. Returns the number of bytes read, and true if
    /// it is known that no more follow.
    fn fill(&mut self, buffer: &mut [u8]) -> io::Result<(usize, bool)>;
}

/// Bytes already in memory, and the stream of the others.
type OpenedText<'a> = (Vec<u8>, Option<Box<dyn ByteStream + 'a>>);

/// Opens a file. It is decompressed if necessary; a matrix in an archive is unpacked at once.
pub(super) fn open<'a>(path: &Path, reader: &'a Reader<'a>) -> Result<OpenedText<'a>, Error> {
    let mut file = File::open(path).map_err(|e| Error::io("open", path, e))?;
    let metadata = file.metadata().map_err(|e| Error::io("open", path, e))?;
    if metadata.is_dir() {
        return Err(Error::io("read", path, io::ErrorKind::IsADirectory.into()));
    }
    let start = start_of(&mut file).map_err(|e| Error::io("read", path, e))?;
    let compressed = start.starts_with(GZIP_MAGIC) || start.starts_with(ZSTD_MAGIC);
    if !compressed && !is_tar(&start) {
        return Ok((Vec::new(), Some(plain(path, reader, start, file, metadata.len())?)));
    }
    let gzip = start.starts_with(GZIP_MAGIC);
    let bytes = Cursor::new(start).chain(file);
    if !compressed {
        return Ok((unpack(path, reader, &mut BufReader::with_capacity(BUFFER, bytes))?, None));
    }
    let watched = Watched { bytes, total: metadata.len(), done: 0, reported: 0, reader };
    let mut text: Box<dyn Read + 'a> = if gzip {
        Box::new(MultiGzDecoder::new(BufReader::with_capacity(BUFFER, watched)))
    } else {
        zstd_decoder(watched).map_err(|e| Error::io("decompress", path, e))?
    };
    let start = start_of(&mut text).map_err(|e| Error::io("decompress", path, e))?;
    let archive = is_tar(&start);
    let mut bytes = Cursor::new(start).chain(text);
    if archive {
        return Ok((unpack(path, reader, &mut bytes)?, None));
    }
    Ok((Vec::new(), Some(sequential(bytes, "decompress"))))
}

/// The first bytes, enough to recognise an archive.
fn start_of(bytes: &mut dyn Read) -> io::Result<Vec<u8>> {
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

/// The bytes of a text that is not compressed, of `len` bytes according to the system and beginning
/// with `start`. Pipes and files such as those of `/proc` report no length.
fn plain<'a>(
    path: &Path,
    reader: &Reader<'_>,
    start: Vec<u8>,
    file: File,
    len: u64,
) -> Result<Box<dyn ByteStream + 'a>, Error> {
    if len > reader.memory_limit {
        return Err(too_long(path, reader));
    }
    #[cfg(unix)]
    if len >= parallel::MIN {
        return Ok(Box::new(parallel::PlainFile { file, at: 0, len }));
    }
    Ok(sequential(Cursor::new(start).chain(file), "read"))
}

/// Bytes read one after the other, with the action of an error.
pub(super) fn sequential<'a>(
    bytes: impl Read + 'a,
    action: &'static str,
) -> Box<dyn ByteStream + 'a> {
    Box::new(Sequential { bytes, action })
}

/// Bytes of a pipe, of a decompressor or of a small file.
struct Sequential<R> {
    bytes: R,
    action: &'static str,
}

impl<R: Read> ByteStream for Sequential<R> {
    fn action(&self) -> &'static str {
        self.action
    }

    fn left(&self) -> Option<u64> {
        None
    }

    fn fill(&mut self, buffer: &mut [u8]) -> io::Result<(usize, bool)> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.bytes.read(&mut buffer[filled..]) {
                Ok(0) => return Ok((filled, true)),
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok((filled, false))
    }
}

/// The error of a file whose size was known, with a reason in place of an early end.
pub fn shortened(error: io::Error) -> io::Error {
    match error.kind() {
        kind @ io::ErrorKind::UnexpectedEof => {
            io::Error::new(kind, "it became shorter while it was read")
        }
        _ => error,
    }
}

/// Reading of large files by several threads.
#[cfg(unix)]
pub(super) mod parallel {
    use super::{ByteStream, shortened};
    use crate::parallel::try_for_each_item;
    use std::fs::File;
    use std::io;
    use std::os::unix::fs::FileExt;

    /// Size from which a file is read by several threads, in bytes.
    pub(super) const MIN: u64 = 1 << 23;

    /// Bytes that a thread reads at a time.
    const PIECE: usize = 1 << 20;

    /// A file of known length. It is an error if it becomes shorter.
    pub(in super::super) struct PlainFile {
        pub(in super::super) file: File,
        pub(in super::super) at: u64,
        pub(in super::super) len: u64,
    }

    impl ByteStream for PlainFile {
        fn action(&self) -> &'static str {
            "read"
        }

        fn left(&self) -> Option<u64> {
            Some(self.len - self.at)
        }

        fn fill(&mut self, buffer: &mut [u8]) -> io::Result<(usize, bool)> {
            let left = usize::try_from(self.len - self.at).unwrap_or(usize::MAX);
            let count = buffer.len().min(left);
            let pieces = buffer[..count].chunks_mut(PIECE).enumerate();
            let Self { file, at, .. } = self;
            try_for_each_item(pieces, |(k, piece)| {
                file.read_exact_at(piece, *at + (k * PIECE) as u64).map_err(shortened)
            })?;
            *at += count as u64;
            Ok((count, *at == self.len))
        }
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
    text: &mut dyn Read,
) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let read = text.take(reader.memory_limit.saturating_add(1)).read_to_end(&mut bytes);
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

pub(super) fn too_long(path: &Path, reader: &Reader<'_>) -> Error {
    let limit = reader.memory_limit;
    let message = format!("the text is above the limit of {limit} bytes");
    ParseProblem::new(message).of_file(path)
}

/// Extracts the matrix from an archive: the file `NAME.mtx` of a folder or an archive `NAME`, else
/// the only `.mtx`.
fn unpack(path: &Path, reader: &Reader<'_>, archive: &mut dyn Read) -> Result<Vec<u8>, Error> {
    let broken = |e| Error::io("unpack", path, e);
    // The archive reader holds whole headers in memory.
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
    text.filter(|_| wanted || names.len() == 1).ok_or_else(|| no_choice(&names).of_file(path))
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
