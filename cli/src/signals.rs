//! Signals that end the program: temporary files are removed first.

use super::console::Console;

/// Exit code of a program that a signal ends, without the number of the signal.
const SIGNALLED: i32 = 128;

/// Lets interrupts (Ctrl-C), and on Unix also terminations and hang-ups, remove temporary files
/// before the program ends with 128 and the number of the signal. A second signal ends it at once.
/// A write beyond the limit on the size of files returns an error, without a signal.
///
/// To be called before any thread starts, since threads inherit the mask of signals.
#[cfg(unix)]
pub(super) fn handle(console: &Console) {
    use libc::{SIG_DFL, SIG_IGN, SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
    let mut handled = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigemptyset` initialises the set, which the other calls are given; the numbers of
    // the signals are valid, and without a new action `sigaction` only writes the present one,
    // which zeros initialise.
    let handled = unsafe {
        libc::sigemptyset(handled.as_mut_ptr());
        let mut handled = handled.assume_init();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            let mut present = std::mem::zeroed::<libc::sigaction>();
            libc::sigaction(signal, std::ptr::null(), &mut present);
            let is_ignored = present.sa_sigaction == SIG_IGN;
            // `nohup` lets a program ignore hang-ups, and that stays. A shell lets programs in the
            // background ignore interrupts, which end this one nevertheless.
            if signal == SIGINT && is_ignored {
                libc::signal(SIGINT, SIG_DFL);
            }
            if signal == SIGINT || !is_ignored {
                libc::sigaddset(&mut handled, signal);
            }
        }
        libc::signal(SIGXFSZ, SIG_IGN);
        libc::pthread_sigmask(libc::SIG_BLOCK, &handled, std::ptr::null_mut());
        handled
    };
    let waiting = std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        let mut signal = 0;
        // SAFETY: the set is initialised, and its signals are blocked in every thread.
        if unsafe { libc::sigwait(&handled, &mut signal) } == 0 {
            // The removal may wait for a copy; a second signal then has its default action.
            // SAFETY: as above.
            unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &handled, std::ptr::null_mut()) };
            sparseop::abandon_writes();
            std::process::exit(SIGNALLED + signal);
        }
    });
    if let Err(error) = waiting {
        // SAFETY: as above. The signals end the program without its help.
        unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &handled, std::ptr::null_mut()) };
        console.warn(&format!("signals may leave temporary files behind: {error}"));
    }
}

/// Lets interrupts (Ctrl-C) remove temporary files before the program ends.
#[cfg(not(unix))]
pub(super) fn handle(console: &Console) {
    /// Number of an interrupt.
    const INTERRUPT: i32 = 2;
    let handler = ctrlc::set_handler(|| {
        sparseop::abandon_writes();
        std::process::exit(SIGNALLED + INTERRUPT);
    });
    if let Err(error) = handler {
        console.warn(&format!("Ctrl-C may leave temporary files behind: {error}"));
    }
}
