//! Makes one source of a kernel file and its includes, because the compiler at run time reads no
//! files.

use std::collections::BTreeMap;

/// All files in the folder of the kernels, by name: `*.cuh`, which include nothing, and `*.cu`.
pub(crate) type Headers = BTreeMap<String, String>;

/// Returns the kernel file `file` with its include lines replaced by the included files. Compiler
/// messages still name the original file and line.
///
/// # Errors
///
/// If an included file does not exist.
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
            return Err(format!(
                "kernels/{file}:{number}: includes \"{name}\", but there are {known}"
            ));
        };
        let next = number + 1;
        spliced += &splice(name, header, headers)?;
        spliced += &format!("#line {next} \"kernels/{file}\"\n");
    }
    Ok(spliced)
}

/// Appends a line. `#pragma once` is dropped: outside of a header it is a warning.
fn push(text: &mut String, line: &str) {
    if line.trim() != "#pragma once" {
        *text += line;
    }
    text.push('\n');
}

/// The file name between the quotes of an `#include`.
fn included(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix('#')?.trim_start().strip_prefix("include")?;
    rest.trim_start().strip_prefix('"')?.split('"').next()
}
