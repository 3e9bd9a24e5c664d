//! Measurements in files: one line of RON each, after a header line with their origin.
//!
//! The journal of a campaign has one line per matrix, and an interrupted campaign continues from
//! it. The measurements of a finished campaign can be stored, compressed, and fitted again.

use crate::offline::Measured;
use crate::refit::Provenance;
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::fs::{File, TryLockError};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Version of the layout of the lines.
const LAYOUT: u32 = 2;

/// First bytes of a header line of this layout. A journal is created with them.
const START: &str = "(layout:2,policy:\"";

/// First bytes of compressed files (RFC 8878, 3.1.1).
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Largest size of an unpacked file, in bytes: records of some hundred thousand matrices.
const MAX_BYTES: u64 = 1 << 30;

/// Largest size of a line, in bytes: many times that of a matrix with every plan.
const MAX_LINE: usize = 1 << 20;

/// Memory that a line takes at most while it is read, in bytes.
const LINE_ROOM: usize = 64 * MAX_LINE;

/// First line: origin of the measurements.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MeasurementsHeader {
    layout: u32,
    /// Policy of the timing runs.
    policy: String,
    /// Origin of the measurements.
    pub provenance: Provenance,
}

impl MeasurementsHeader {
    /// Creates the header of measurements by a policy.
    pub fn new(policy: String, provenance: Provenance) -> Self {
        Self { layout: LAYOUT, policy, provenance }
    }

    /// Reason why measurements under this header cannot be combined with those under `other`;
    /// `None` if they can.
    fn differs(&self, other: &Self) -> Option<&'static str> {
        let (ours, theirs) = (&self.provenance, &other.provenance);
        if self.layout != other.layout {
            Some("it is of another version of the program")
        } else if ours.device != theirs.device {
            Some("it is of another device")
        } else if ours.kernels != theirs.kernels {
            Some("it is of kernels of another version")
        } else if self.policy != other.policy {
            Some("its plans were run for another time")
        } else {
            None
        }
    }
}

/// Contents of a file.
struct Contents {
    header: MeasurementsHeader,
    measured: Vec<Measured>,
    /// Bytes of the readable lines.
    good: u64,
    /// Reason why the rest is not readable, if there is a rest.
    broken: Option<String>,
}

/// Reads lines up to the first damaged one.
///
/// # Errors
///
/// [`io::Error`] if the lines cannot be read, [`Error`](sparseop::Error) if there is not enough
/// memory for them, and another error if the header line is damaged.
fn read_lines(reader: impl BufRead) -> Result<Contents> {
    let mut reader = reader.take(MAX_BYTES);
    let mut line = Vec::new();
    let mut good = 0;
    // `None` at the end, for an unfinished last line and for one that is too long.
    let mut next = |line: &mut Vec<u8>| -> Result<Option<u64>> {
        line.clear();
        sparseop::check_room(LINE_ROOM)?;
        let bytes = reader.by_ref().take(MAX_LINE as u64).read_until(b'\n', line)? as u64;
        Ok(line.ends_with(b"\n").then_some(bytes))
    };
    let Some(bytes) = next(&mut line)? else { bail!("its header line is missing") };
    let header: MeasurementsHeader =
        ron::de::from_bytes(&line).context("its header line is invalid")?;
    if header.layout != LAYOUT {
        bail!("it has layout {}, and this program reads {LAYOUT}", header.layout);
    }
    if let Some(defect) = header.provenance.defect() {
        bail!("line 1: {defect}");
    }
    good += bytes;
    let (mut measured, mut broken) = (Vec::new(), None);
    while let Some(bytes) = next(&mut line)? {
        let parsed = ron::de::from_bytes::<Measured>(&line).map_err(|error| error.to_string());
        match parsed.and_then(|m| m.defect().map_or(Ok(m), Err)) {
            Ok(one) => measured.push(one),
            Err(reason) => {
                broken = Some(format!("line {}: {reason}", measured.len() + 2));
                break;
            }
        }
        good += bytes;
    }
    if broken.is_none() && !line.is_empty() {
        let reason = match line.len() {
            MAX_LINE.. => format!("has more than {MAX_LINE} bytes"),
            _ => "was not finished".to_owned(),
        };
        broken = Some(format!("line {} {reason}", measured.len() + 2));
    }
    Ok(Contents { header, measured, good, broken })
}

/// Stored measurements of one device.
pub struct StoredMeasurements {
    /// Origin of the measurements.
    pub header: MeasurementsHeader,
    /// The measurements.
    pub measured: Vec<Measured>,
    /// One sentence for each file that was only read in part.
    pub incomplete: Vec<String>,
}

/// Reads stored measurements, compressed or not.
fn read(path: &Path) -> Result<StoredMeasurements> {
    let reading = || format!("cannot use the measurements in {}", path.display());
    let mut file = sparseop::open_regular(path).with_context(reading)?;
    let mut magic = Vec::new();
    (&mut file).take(ZSTD_MAGIC.len() as u64).read_to_end(&mut magic).with_context(reading)?;
    file.rewind().with_context(reading)?;
    let contents = if magic == ZSTD_MAGIC {
        read_lines(BufReader::new(zstd::Decoder::new(file).with_context(reading)?))
    } else {
        read_lines(BufReader::new(file))
    };
    let contents = contents.with_context(reading)?;
    let incomplete = |broken| format!("{} is read as far as it goes: {broken}", path.display());
    let Contents { header, measured, broken, .. } = contents;
    Ok(StoredMeasurements {
        header,
        measured,
        incomplete: broken.into_iter().map(incomplete).collect(),
    })
}

/// Reads several files of measurements on one device.
///
/// # Errors
///
/// An error if a file cannot be read, or if its measurements cannot be combined with those of the
/// first.
pub fn read_all(paths: &[PathBuf]) -> Result<StoredMeasurements> {
    let [first, others @ ..] = paths else { bail!("there is no file of measurements") };
    let mut kept = read(first)?;
    for path in others {
        let other = read(path)?;
        if let Some(reason) = kept.header.differs(&other.header) {
            bail!("{} does not go with {}: {reason}", path.display(), first.display());
        }
        kept.measured.extend(other.measured);
        kept.incomplete.extend(other.incomplete);
    }
    Ok(kept)
}

/// Formats a line of RON.
fn line(value: &impl Serialize) -> Result<String> {
    Ok(ron::to_string(value)? + "\n")
}

/// Writes measurements to a file, compressed if its name ends in `.zst`.
///
/// # Errors
///
/// An error if the file cannot be written.
pub fn write(path: &Path, header: &MeasurementsHeader, measured: &[Measured]) -> Result<()> {
    let mut text = line(header)?;
    for one in measured {
        text += &line(one)?;
    }
    let zst = path.extension().is_some_and(|e| e == "zst");
    let bytes = if zst { zstd::encode_all(text.as_bytes(), LEVEL)? } else { text.into_bytes() };
    Ok(sparseop::write_atomically(path, |out| out.write_all(&bytes))?)
}

/// A level for small files at hundreds of megabytes per second.
const LEVEL: i32 = 9;

/// The locked file of a journal. It is removed on drop if it has no header.
pub struct JournalFile {
    path: PathBuf,
    file: File,
}

/// The journal of a campaign.
pub struct Journal(JournalFile);

/// An opened journal.
pub struct Opened {
    /// The journal.
    pub journal: Journal,
    /// The measurements of an interrupted campaign.
    pub measured: Vec<Measured>,
    /// One sentence if an existing journal was discarded.
    pub discarded: Option<String>,
}

impl JournalFile {
    /// Locks the file at `path` against other processes, and creates it if there is none.
    ///
    /// # Errors
    ///
    /// An error if another process has locked the file, if the file is no journal, a symbolic link
    /// or of another user, or if it cannot be opened.
    pub fn lock(path: PathBuf) -> Result<Self> {
        /// Processes that may remove their journals meanwhile.
        const ATTEMPTS: usize = 100;
        let opening = || format!("cannot keep the journal {}", path.display());
        for _ in 0..ATTEMPTS {
            if path.symlink_metadata().is_ok_and(|found| found.is_symlink()) {
                bail!(
                    "the journal {} is a symbolic link; remove it or choose another output file",
                    path.display()
                );
            }
            let file = match sparseop::open_own(&path, File::options().read(true).write(true)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    // A file that is no journal never has this name, whenever the process ends.
                    sparseop::write_new(&path, |out| out.write_all(START.as_bytes()))?;
                    continue;
                }
                opened => opened.with_context(opening)?,
            };
            match file.try_lock() {
                // A file system without locks does not tell processes apart.
                Ok(()) | Err(TryLockError::Error(_)) => {}
                Err(TryLockError::WouldBlock) => bail!(
                    "another process measures into the journal {}; wait until it ends, or choose \
                     another output file",
                    path.display()
                ),
            }
            // The process that had locked it may have removed it.
            if !is_at(&file, &path) {
                continue;
            }
            let mut start = Vec::new();
            let read = (&file).take(START_BYTES).read_to_end(&mut start);
            read.and_then(|_| (&file).rewind()).with_context(opening)?;
            if !is_header_start(&start) {
                bail!(
                    "{} is not a journal of measurements and is not overwritten; move it away, or \
                     choose another output file",
                    path.display()
                );
            }
            return Ok(Self { path, file });
        }
        bail!("{}: other processes keep removing it", opening())
    }

    /// Reads the journal. A journal under another header is discarded, and any journal if `fresh`.
    ///
    /// # Errors
    ///
    /// An error if the file cannot be read or written.
    pub fn open(mut self, header: &MeasurementsHeader, fresh: bool) -> Result<Opened> {
        let display = self.path.display().to_string();
        let opening = || format!("cannot keep the journal {display}");
        let (mut measured, mut discarded) = (Vec::new(), None);
        let mut good = 0;
        let is_new = self.file.metadata().with_context(opening)?.len() <= START.len() as u64;
        if !fresh && !is_new {
            let found = match read_lines(BufReader::new(&self.file)) {
                // The lines that cannot be read now may be intact.
                Err(error) if error.is::<io::Error>() || error.is::<sparseop::Error>() => {
                    return Err(error).with_context(opening);
                }
                found => found.map_err(|error| error.to_string()),
            };
            let usable = found.and_then(|c| {
                c.header.differs(header).map_or(Ok(c), |reason| Err(reason.to_owned()))
            });
            match usable {
                Ok(contents) => (measured, good) = (contents.measured, contents.good),
                Err(reason) => discarded = Some(format!("{display} is restarted: {reason}")),
            }
        }
        // A process that is killed here leaves a journal.
        self.file.set_len(good.max(START.len() as u64)).with_context(opening)?;
        self.file.seek(SeekFrom::Start(good)).with_context(opening)?;
        let mut journal = Journal(self);
        if good == 0 {
            journal.add(&line(header)?)?;
        }
        Ok(Opened { journal, measured, discarded })
    }
}

impl Drop for JournalFile {
    fn drop(&mut self) {
        let start = START.len() as u64;
        let is_new = self.file.metadata().is_ok_and(|found| found.len() <= start);
        if is_new && is_at(&self.file, &self.path) {
            // A file that stays is taken for a new journal.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Enough bytes for the start of a header line.
const START_BYTES: u64 = 64;

/// True for the start of a header line of any layout, also of one that was not finished.
fn is_header_start(text: &[u8]) -> bool {
    let Some(layout) = text.strip_prefix(b"(layout:") else { return false };
    let digits = layout.iter().take_while(|byte| byte.is_ascii_digit()).count();
    digits > 0 && layout[digits..].starts_with(b",policy:\"")
}

/// True if an open file is the one at a path.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let identity = |found: std::fs::Metadata| (found.dev(), found.ino());
    let (open, named) = (file.metadata().map(identity), path.symlink_metadata().map(identity));
    matches!((open, named), (Ok(open), Ok(named)) if open == named)
}

#[cfg(not(unix))]
fn is_at(_: &File, path: &Path) -> bool {
    path.is_file()
}

impl Journal {
    /// Appends the measurements of a matrix and flushes them to disk.
    ///
    /// # Errors
    ///
    /// An error if the file cannot be written.
    pub fn append(&mut self, measured: &Measured) -> Result<()> {
        self.add(&line(measured)?)
    }

    fn add(&mut self, line: &str) -> Result<()> {
        let JournalFile { path, file } = &mut self.0;
        let written = file.write_all(line.as_bytes()).and_then(|()| file.sync_data());
        written.with_context(|| format!("cannot write to {}", path.display()))
    }

    /// Removes the journal of a finished campaign.
    ///
    /// # Errors
    ///
    /// An error if the file cannot be removed, or if another file has its name now.
    pub fn remove(self) -> Result<()> {
        let JournalFile { path, file } = &self.0;
        if !is_at(file, path) {
            bail!("{} is another file now and is not removed", path.display());
        }
        std::fs::remove_file(path)
            .with_context(|| format!("cannot remove the journal {}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sparseop::analysis::{Analysis, Fingerprint};
    use sparseop::matrix::gallery::Spec;
    use sparseop::tuning::features::MatrixFeatures;
    use sparseop::{Device, ScalarKind};

    fn header(kernels: &str) -> MeasurementsHeader {
        let provenance = Provenance {
            kernels: kernels.to_owned(),
            device: Device::Cpu.spec(),
            ceilings: Default::default(),
            date: String::new(),
            command: String::new(),
        };
        MeasurementsHeader::new(String::new(), provenance)
    }

    /// Measurements of a matrix on which no plan was run.
    fn measured(matrix: &str) -> Measured {
        let a = "poisson2d,n=4".parse::<Spec>().unwrap().generate::<f64>().unwrap();
        Measured {
            matrix: matrix.to_owned(),
            class: "poisson2d".to_owned(),
            fingerprint: Fingerprint::of(a.view()),
            scalar: ScalarKind::F64,
            features: MatrixFeatures::from(&Analysis::of(a.view())),
            runs: Vec::new(),
            failed: Vec::new(),
        }
    }

    #[test]
    fn a_run_is_resumed_as_often_as_it_ends_and_restarted_for_other_kernels() {
        let folder = tempfile::tempdir().unwrap();
        let open = |kernels: &str| {
            let journal = JournalFile::lock(folder.path().join("journal")).unwrap();
            journal.open(&header(kernels), false).unwrap()
        };
        let mut before = Vec::new();
        for matrix in ["first", "second", "third"] {
            let Opened { mut journal, measured: found, discarded } = open("1");
            assert_eq!((&found, discarded), (&before, None));
            before.push(measured(matrix));
            journal.append(&before[found.len()]).unwrap();
        }
        let Opened { measured, discarded, .. } = open("2");
        assert_eq!(measured, []);
        assert!(discarded.unwrap().contains("kernels of another version"));
    }

    #[test]
    fn lines_that_cannot_be_read_are_not_truncated() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        std::fs::write(&path, format!("{START}Policy")).unwrap();
        // It cannot be read.
        let file = File::options().write(true).open(&path).unwrap();
        let locked = JournalFile { path: path.clone(), file };
        let header = header("");
        let error = locked.open(&header, false).err().unwrap();
        assert!(format!("{error:#}").contains("cannot keep the journal"), "{error:#}");
        assert_eq!(std::fs::read(&path).unwrap().len(), START.len() + 6);
        assert!(line(&header).unwrap().starts_with(START));
    }

    #[test]
    fn a_journal_is_told_by_its_first_line() {
        for ours in [START, "(layout:12,policy:\"x"] {
            assert!(is_header_start(ours.as_bytes()), "{ours}");
        }
        for other in ["", "(", "(layout:", "(layout:1", "(layout:1,policy:", "(layout:,policy:\""] {
            assert!(!is_header_start(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn records_of_the_built_in_profiles_are_read_whole() {
        /// Matrices and precisions of each file.
        const MEASURED: [(&str, usize); 8] = [
            ("cpu-avx2.zst", 1492),
            ("cpu-intel.zst", 1052),
            ("cpu-random.zst", 160),
            ("cpu-real.zst", 190),
            ("cpu.zst", 1494),
            ("nvidia-h200-artificial.zst", 142),
            ("nvidia-h200-real.zst", 180),
            ("nvidia-h200.zst", 4247),
        ];
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/records");
        for (name, measured) in MEASURED {
            let records = read(&folder.join(name)).unwrap();
            assert_eq!(records.incomplete, Vec::<String>::new(), "{name}");
            assert_eq!(records.measured.len(), measured, "{name}");
        }
        let name = |file: std::io::Result<std::fs::DirEntry>| file.unwrap().file_name();
        let mut found: Vec<_> = std::fs::read_dir(folder).unwrap().map(name).collect();
        found.sort();
        let lists = ["artificial.txt", "long-rows.txt", "short-rows.txt"];
        let mut expected = [&lists[..], &MEASURED.map(|(name, _)| name)].concat();
        expected.sort_unstable();
        assert_eq!(found, expected);
    }
}
