//! What the GPU kernels take of a multiprocessor, as the assembler accounts for it; needs NVRTC but no GPU.

use crate::Error;
use crate::device::compiler;

/// What one kernel takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelReport {
    /// The kernel file, without its ending.
    pub module: &'static str,
    /// The kernel.
    pub kernel: String,
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of registers that do not fit and are written to memory and read back, counted at every such place.
    pub spill_bytes: u32,
    /// Bytes of shared memory of a block.
    pub shared_bytes: u32,
    /// Bytes of memory of a thread for what is not in registers.
    pub stack_bytes: u32,
}

/// The names of the kernel files, without their endings.
pub fn modules() -> impl Iterator<Item = &'static str> {
    compiler::modules()
}

/// The name and the version of the compiler that was found, or why there is none, in one line.
///
/// # Errors
///
/// The reason.
pub fn compiler_name() -> Result<String, &'static str> {
    compiler::compiler()
}

/// Compiles every kernel for an architecture, given as major and minor number.
///
/// # Errors
///
/// [`Error::KernelCompile`] for the first file that cannot be compiled.
pub fn check(arch: (u32, u32)) -> Result<Vec<KernelReport>, Error> {
    let mut reports = Vec::new();
    for module in modules() {
        reports.extend(read_account(module, &compiler::account(arch, module)?));
    }
    Ok(reports)
}

/// Reads what `ptxas -v` prints: for every kernel lines that name it, then its stack and spills, then its registers.
fn read_account(module: &'static str, text: &str) -> Vec<KernelReport> {
    let mut reports: Vec<KernelReport> = Vec::new();
    for line in text.lines() {
        if let Some(rest) = line.split("Compiling entry function '").nth(1) {
            let kernel = rest.split('\'').next().unwrap_or_default().to_owned();
            let nothing = KernelReport {
                module,
                kernel,
                registers: 0,
                spill_bytes: 0,
                shared_bytes: 0,
                stack_bytes: 0,
            };
            reports.push(nothing);
        } else if let Some(report) = reports.last_mut() {
            if line.contains("bytes stack frame") {
                report.stack_bytes = before(line, " bytes stack frame");
                report.spill_bytes = before(line, " bytes spill stores") + before(line, " bytes spill loads");
            } else if line.contains("Used ") {
                report.registers = before(line, " registers");
                report.shared_bytes = before(line, " bytes smem");
            }
        }
    }
    reports
}

/// The number that stands directly before `unit`; 0 where there is none.
fn before(line: &str, unit: &str) -> u32 {
    let number = line.split_once(unit).and_then(|(head, _)| head.rsplit([' ', ',']).next()?.parse().ok());
    number.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_assembler_is_understood() {
        let text = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'one' for 'sm_90'
ptxas info    : Function properties for one
ptxas         .     72 bytes stack frame, 64 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 80 registers, used 1 barriers, 72 bytes cumulative stack size, 128 bytes smem
ptxas info    : Compile time = 27.249 ms
ptxas info    : Compiling entry function 'two' for 'sm_90'
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 0 barriers";
        let report =
            |kernel: &str, [registers, spill_bytes, shared_bytes, stack_bytes]: [u32; 4]| KernelReport {
                module: "test",
                kernel: kernel.to_owned(),
                registers,
                spill_bytes,
                shared_bytes,
                stack_bytes,
            };
        assert_eq!(
            read_account("test", text),
            [report("one", [80, 72, 128, 72]), report("two", [10, 0, 0, 0])]
        );
        assert_eq!(read_account("test", ""), []);
    }
}
