//! A program as a file: where it is, what runs it, and whether a preload library is loaded into that.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use crate::error::{Error, Result};

/// How many interpreters may follow one another (the kernel's limit is 4 rewritings as well, `exec_binprm`).
const INTERPRETERS_MAX: usize = 4;
/// How much of a script's first line is read (`BINPRM_BUF_SIZE`).
const LINE_BYTES_MAX: usize = 256;
/// The program headers that are read. Real programs have about a dozen.
const HEADERS_MAX: u16 = 64;
/// The notes that are read, in bytes. Go's build id is among the first.
const NOTES_BYTES_MAX: u64 = 4096;

const PT_INTERP: u32 = 3;
const PT_NOTE: u32 = 4;
/// Bytes of an ELF header and of a program header, in files of 64 bits.
const ELF_HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;

/// Finds a program as `execvp(3)` does.
///
/// # Errors
/// There is none, or none that can be executed.
pub(super) fn find(name: &OsStr) -> Result<PathBuf> {
    let runs = |path: &Path| path.is_file() && access(path, Access::EXEC_OK).is_ok();
    let no = |why: &str, remedy: &str| Error::Input {
        what: format!("cannot run '{}': {why}", name.to_string_lossy()),
        remedy: remedy.to_owned(),
    };
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return if runs(&path) { Ok(path) } else { Err(no("there is no such program", "check its path and mode")) };
    }
    let directories = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    let mut candidates = std::env::split_paths(&directories).map(|directory| directory.join(name));
    candidates.find(|path| runs(path)).ok_or_else(|| no("no such program is in PATH", "give its path"))
}

/// The reason why a program does not load lull's preload library. There is none if it does.
///
/// # Errors
/// The file cannot be read.
pub(super) fn no_preload(path: &Path) -> io::Result<Option<String>> {
    let mut path = path.to_owned();
    for _ in 0..=INTERPRETERS_MAX {
        if let Some(why) = secure(&path)? {
            return Ok(Some(why));
        }
        let file = File::open(&path)?;
        let Some(interpreter) = script_interpreter(&file)? else { return elf(&file, &path) };
        path = interpreter;
    }
    Ok(Some(format!("{} is a script of too many interpreters", path.display())))
}

/// Programs that gain rights when they are executed ignore preload libraries (AT_SECURE, `cap_bprm_creds_from_file`).
fn secure(path: &Path) -> io::Result<Option<String>> {
    let metadata = path.metadata()?;
    let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
    let is_set = |bits: u32| metadata.mode() & bits == bits;
    let gains_user = is_set(libc::S_ISUID) && metadata.uid() != uid.as_raw();
    let gains_group = is_set(libc::S_ISGID | libc::S_IXGRP) && metadata.gid() != gid.as_raw();
    let has_capabilities = || rustix::fs::getxattr(path, "security.capability", &mut [0_u8; 64][..]).is_ok();
    Ok(if gains_user || gains_group {
        Some(format!("{} is set-user-ID or set-group-ID", path.display()))
    } else if !uid.is_root() && has_capabilities() {
        Some(format!("{} has file capabilities", path.display()))
    } else {
        None
    })
}

fn script_interpreter(file: &File) -> io::Result<Option<PathBuf>> {
    let mut start = Vec::new();
    file.take(LINE_BYTES_MAX as u64).read_to_end(&mut start)?;
    let Some(line) = start.strip_prefix(b"#!") else { return Ok(None) };
    let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let mut words = line.split(|byte| matches!(byte, b' ' | b'\t')).filter(|word| !word.is_empty());
    Ok(words.next().map(|word| PathBuf::from(OsStr::from_bytes(word))))
}

/// What an ELF file says about itself.
#[derive(Debug, Default, PartialEq, Eq)]
struct Elf {
    machine: u16,
    interpreter: Option<String>,
    is_go: bool,
}

fn elf(file: &File, path: &Path) -> io::Result<Option<String>> {
    let of_ours = File::open("/proc/self/exe").ok().and_then(|ours| read_elf(&ours).ok().flatten());
    let name = path.display();
    let Some(elf) = read_elf(file)? else {
        return Ok(Some(format!("{name} is no ELF program of 64 bits and little-endian")));
    };
    let loader = if cfg!(target_env = "musl") { "ld-musl" } else { "ld-linux" };
    Ok(match elf.interpreter {
        None => Some(format!("{name} is statically linked")),
        Some(_) if elf.is_go => Some(format!("{name} is a Go program, which calls the kernel past the C library")),
        Some(_) if of_ours.is_some_and(|ours| ours.machine != elf.machine) => {
            Some(format!("{name} is for another processor"))
        }
        Some(interpreter) if !interpreter.contains(loader) => {
            Some(format!("{name} has another C library than lull ({interpreter})"))
        }
        Some(_) => None,
    })
}

/// Reads the headers of a little-endian ELF file of 64 bits. Returns nothing for any other file.
fn read_elf(file: &File) -> io::Result<Option<Elf>> {
    let mut header = [0; ELF_HEADER];
    if file.read_exact_at(&mut header, 0).is_err() || header[..6] != *b"\x7fELF\x02\x01" {
        return Ok(None);
    }
    let mut elf = Elf { machine: u16_at(&header, 18), ..Elf::default() };
    let (at, size, count) = (u64_at(&header, 32), u16_at(&header, 54), u16_at(&header, 56));
    if usize::from(size) != PROGRAM_HEADER {
        return Ok(None);
    }
    for nth in 0..count.min(HEADERS_MAX) {
        let mut segment = [0; PROGRAM_HEADER];
        let offset = at.saturating_add(u64::from(nth) * PROGRAM_HEADER as u64);
        file.read_exact_at(&mut segment, offset)?;
        let bytes = |max: u64| -> io::Result<Vec<u8>> {
            let mut bytes = vec![0; u64_at(&segment, 32).min(max) as usize];
            file.read_exact_at(&mut bytes, u64_at(&segment, 8))?;
            Ok(bytes)
        };
        match u32_at(&segment, 0) {
            PT_INTERP => {
                let name = bytes(NOTES_BYTES_MAX)?;
                elf.interpreter = Some(String::from_utf8_lossy(&name).trim_end_matches('\0').to_owned());
            }
            // A note of owner "Go" is Go's build id.
            PT_NOTE => elf.is_go |= bytes(NOTES_BYTES_MAX)?.windows(8).any(|it| it == b"\x04\0\0\0Go\0\0"),
            _ => {}
        }
    }
    Ok(Some(elf))
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn programs_are_found_as_the_shell_finds_them() {
        assert!(find(OsStr::new("sh")).unwrap().ends_with("sh"));
        let said = find(OsStr::new("no-such-program")).unwrap_err().to_string();
        assert!(said.contains("no-such-program") && said.contains("PATH"), "{said}");
        assert!(find(OsStr::new("/etc/passwd")).is_err());
    }

    /// An ELF file with these segments: type and content.
    fn elf_file(segments: &[(u32, &[u8])]) -> Vec<u8> {
        let mut file = vec![0; ELF_HEADER + segments.len() * PROGRAM_HEADER];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file[18] = 62;
        file[32] = ELF_HEADER as u8;
        file[54] = PROGRAM_HEADER as u8;
        file[56] = segments.len() as u8;
        for (nth, (kind, content)) in segments.iter().enumerate() {
            let at = ELF_HEADER + nth * PROGRAM_HEADER;
            let offset = file.len() as u64;
            file[at..at + 4].copy_from_slice(&kind.to_le_bytes());
            file[at + 8..at + 16].copy_from_slice(&offset.to_le_bytes());
            file[at + 32..at + 40].copy_from_slice(&(content.len() as u64).to_le_bytes());
            file.extend_from_slice(content);
        }
        file
    }

    #[test]
    fn headers_tell_static_go_and_foreign_programs() {
        let path = std::env::temp_dir().join(format!("lull-elf-{}", std::process::id()));
        let read = |content: &[u8]| {
            std::fs::write(&path, content).unwrap();
            read_elf(&File::open(&path).unwrap())
        };
        let interpreter = (PT_INTERP, &b"/lib/ld-musl-x86_64.so.1\0"[..]);
        let build_id = (PT_NOTE, &b"\x04\0\0\0\x02\0\0\0\x04\0\0\0Go\0\0ab"[..]);
        let gnu = (PT_NOTE, &b"\x04\0\0\0\x02\0\0\0\x03\0\0\0GNU\0ab"[..]);
        let musl = read(&elf_file(&[gnu, interpreter])).unwrap().unwrap();
        assert_eq!((musl.interpreter.as_deref(), musl.is_go), (Some("/lib/ld-musl-x86_64.so.1"), false));
        assert_eq!(musl.machine, 62);
        assert_eq!(read(&elf_file(&[gnu])).unwrap().unwrap().interpreter, None);
        let go = read(&elf_file(&[interpreter, build_id])).unwrap().unwrap();
        assert!(read(b"").unwrap().is_none());
        // A file that is cut off within its segments is an error, and causes no panic.
        let whole = elf_file(&[interpreter]);
        assert!(read(&whole[..whole.len() - 1]).is_err());
        std::fs::remove_file(&path).unwrap();
        assert!(go.is_go);
    }

    #[test]
    fn this_test_is_a_dynamic_program_and_a_script_is_what_its_interpreter_is() {
        let me = std::env::current_exe().unwrap();
        let directory = std::env::temp_dir().join(format!("lull-program-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let script = directory.join("script");
        writeln!(File::create(&script).unwrap(), "#! {} -x", me.display()).unwrap();
        std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
        let text = directory.join("text");
        writeln!(File::create(&text).unwrap(), "no program").unwrap();
        let answers = (no_preload(&me).unwrap(), no_preload(&script).unwrap(), no_preload(&text).unwrap());
        // A script that is its own interpreter comes to an end as well.
        writeln!(File::create(&script).unwrap(), "#!{}", script.display()).unwrap();
        let endless = no_preload(&script).unwrap();
        std::fs::remove_dir_all(&directory).unwrap();
        assert_eq!((answers.0, answers.1), (None, None));
        assert!(answers.2.unwrap().contains("no ELF"));
        assert!(endless.unwrap().contains("too many"));
    }
}
