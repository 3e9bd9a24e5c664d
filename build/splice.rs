//! One source from a kernel file and what it includes, because the compiler that runs later reads no files.

use std::collections::BTreeMap;

/// Everything in the folder of the kernels by name: `*.cuh`, which include nothing, and `*.cu`.
pub(crate) type Headers = BTreeMap<String, String>;

/// The kernel file `file` with other files in the place of the lines that include them. Compilers still name the line of the file that
/// somebody wrote.
///
/// # Errors
///
/// When a file is included that is not there.
pub(crate) fn splice(file: &str, source: &str, headers: &Headers) -> Result<String, String> {
    let mut spliced = format!("#line 1 \"kernels/{file}\"\n");
    for (number, line) in (1..).zip(source.lines()) {
        let Some(name) = included(line) else {
            push(&mut spliced, line);
            continue;
        };
        let Some(header) = headers.get(name) else {
            let known: Vec<_> = headers.keys().map(String::as_str).collect();
            let known = known.join(", ");
            return Err(format!("kernels/{file}:{number}: includes \"{name}\", but there are {known}"));
        };
        let next = number + 1;
        spliced += &splice(name, header, headers)?;
        spliced += &format!("#line {next} \"kernels/{file}\"\n");
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
