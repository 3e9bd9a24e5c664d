//! Standard output, whose errors are reported.

use std::fmt;
use std::io::{self, StdoutLock, Write};

/// Error of writing to standard output.
#[derive(Debug)]
pub(crate) struct OutputError(io::Error);

impl OutputError {
    /// True if the reader has closed the pipe.
    pub(crate) fn is_broken_pipe(&self) -> bool {
        self.0.kind() == io::ErrorKind::BrokenPipe
    }
}

impl fmt::Display for OutputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot write to standard output: {}", self.0)
    }
}

impl std::error::Error for OutputError {}

/// Standard output that was open when the program started.
pub(crate) struct StandardOutput(StdoutLock<'static>);

impl StandardOutput {
    /// Returns standard output if it is open.
    pub(crate) fn open() -> Result<Self, OutputError> {
        if at_start::is_closed() {
            return Err(OutputError(io::Error::other("it is closed")));
        }
        Ok(Self(io::stdout().lock()))
    }

    /// Writes a text at once.
    pub(crate) fn write(&mut self, text: &str) -> Result<(), OutputError> {
        self.0.write_all(text.as_bytes()).and_then(|()| self.0.flush()).map_err(OutputError)
    }
}

/// Prints the help or the version that clap has made, and returns the exit code.
pub(crate) fn print_help(help: &clap::Error) -> u8 {
    let printed = StandardOutput::open().and_then(|out| {
        // clap locks standard output itself, and styles the text for a terminal.
        drop(out);
        help.print().and_then(|()| io::stdout().flush()).map_err(OutputError)
    });
    match printed {
        Err(error) if !error.is_broken_pipe() => {
            super::say(&format!("error: {error}"));
            crate::FAILURE
        }
        _ => crate::SUCCESS,
    }
}

/// State of standard output at the start. The runtime of Rust opens `/dev/null` in the place of a
/// closed stream before `main` begins, so it is observed earlier.
#[cfg(any(target_os = "linux", target_os = "macos"))]
mod at_start {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    static CLOSED: AtomicBool = AtomicBool::new(false);

    extern "C" fn observe() {
        // SAFETY: a query of the system; any number is a valid descriptor to ask about.
        let flags = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) };
        CLOSED.store(flags == -1, Relaxed);
    }

    // SAFETY: the functions of this section are called before `main`, with the arguments of `main`
    // or none, which `observe` ignores; it needs no runtime.
    #[used]
    #[cfg_attr(target_os = "linux", unsafe(link_section = ".init_array"))]
    #[cfg_attr(target_os = "macos", unsafe(link_section = "__DATA,__mod_init_func"))]
    static OBSERVE: extern "C" fn() = observe;

    /// True if standard output was closed at the start.
    pub(super) fn is_closed() -> bool {
        CLOSED.load(Relaxed)
    }
}

#[cfg(not(any(target_os = "linux", target_os = "macos")))]
mod at_start {
    /// True if standard output was closed at the start, which other systems do not report.
    pub(super) fn is_closed() -> bool {
        false
    }
}
