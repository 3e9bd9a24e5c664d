//! One source from a kernel file and the header, because the compiler that runs later reads no files.

/// The only header.
pub(crate) const HEADER: &str = "common.cuh";

/// The kernel file `file` with the header in the place of the line that includes it. Compilers still name the line of the file that
/// somebody wrote.
///
/// # Errors
///
/// When another file beside the kernels is included.
pub(crate) fn splice(file: &str, source: &str, header: &str) -> Result<String, String> {
    let mut spliced = format!("#line 1 \"kernels/{file}\"\n");
    for (number, line) in (1..).zip(source.lines()) {
        match included(line) {
            Some(HEADER) => {
                let next = number + 1;
                spliced += &format!("#line 1 \"kernels/{HEADER}\"\n");
                header.lines().for_each(|line| push(&mut spliced, line));
                spliced += &format!("#line {next} \"kernels/{file}\"\n");
            }
            Some(other) => {
                return Err(format!(
                    "kernels/{file}:{number}: includes \"{other}\", but {HEADER} is the only header"
                ));
            }
            None => push(&mut spliced, line),
        }
    }
    Ok(spliced)
}

/// Adds a line; the header's `#pragma once` would be a warning in what is no longer a header.
fn push(text: &mut String, line: &str) {
    if line.trim() != "#pragma once" {
        *text += line;
    }
    text.push('\n');
}

/// What stands between the quotes of an `#include`.
fn included(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix('#')?.trim_start().strip_prefix("include")?;
    rest.trim_start().strip_prefix('"')?.split('"').next()
}
