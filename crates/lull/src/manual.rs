//! `lull man`, `lull completions`, and the list of commands in `lull --help`: all are made from the definitions of the
//! options.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::builder::StyledStr;
use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::failure::Failure;
use crate::output::{out, outln};

/// The commands by subject, in the order in which they are listed.
const GROUPS: [(&str, &[&str]); 6] = [
    ("Measure every mode on this machine", &["compare", "xsk-rr", "flood", "forward", "load", "merge"]),
    ("User plane: lull's own stack", &["serve", "ss", "group"]),
    (
        "Kernel plane: Linux's own stack, under unmodified programs",
        &["doctor", "run", "apply", "diff", "attach", "detach", "prepare"],
    ),
    ("Both planes: a device, or a process with a user plane", &["show", "stat", "top", "set", "undo"]),
    ("Simulated plane: before touching production", &["calibrate", "predict", "tune", "sim"]),
    ("This command itself", &["man", "completions", "help"]),
];

/// The width of a line of the list.
const WIDTH: usize = 110;

/// Arguments of `lull man`.
#[derive(Args)]
pub struct ManArgs {
    /// The command whose page is printed, such as `compare`; the page of `lull` itself by default.
    command: Option<String>,
    /// Write the pages of all commands into this directory instead, such as /usr/local/share/man/man1. It is made if it
    /// does not exist.
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    out: Option<PathBuf>,
}

/// Arguments of `lull completions`.
#[derive(Args)]
pub struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

/// Returns the command line with its commands listed by plane.
pub fn by_plane(command: Command) -> Command {
    let width = command.get_subcommands().map(|it| it.get_name().len()).max().unwrap_or(0);
    let heading = command.get_styles().get_header().to_owned();
    let name_style = command.get_styles().get_literal().to_owned();
    let mut list = String::new();
    for (title, names) in GROUPS {
        list += &format!("{heading}{title}:{heading:#}\n");
        for name in names {
            let about = match command.find_subcommand(name) {
                Some(command) => command.get_about().map(StyledStr::to_string).unwrap_or_default(),
                None => "Prints this message, or the help of a command".to_owned(),
            };
            let indent = " ".repeat(width + 4);
            let lines = wrapped(&about, WIDTH - indent.len());
            list += &format!("  {name_style}{name}{name_style:#}{}  ", " ".repeat(width - name.len()));
            list += &lines.join(&format!("\n{indent}"));
            list.push('\n');
        }
        list.push('\n');
    }
    command.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{list}{heading}Options:{heading:#}\n{{options}}"
    ))
}

/// Breaks `text` into lines of at most `width` columns, as far as its words allow it.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("there is always a line");
        if line.is_empty() {
            line.push_str(word);
        } else if line.len() + 1 + word.len() <= width {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

/// Prints a manual page of the command line, or writes all of them.
pub fn man(args: &ManArgs, mut command: Command) -> Result<ExitCode, Failure> {
    command.build();
    if let Some(directory) = &args.out {
        let pages = pages(&command);
        fs::create_dir_all(directory).map_err(|error| {
            format!("cannot make {}: {error}; name a directory that you may write to", directory.display())
        })?;
        for (name, page) in &pages {
            write_page(&directory.join(name), page)?;
        }
        outln!(
            "wrote {} pages into {}; read one with `man {}`",
            pages.len(),
            directory.display(),
            directory.join("lull.1").display()
        )?;
        return Ok(ExitCode::SUCCESS);
    }
    let chosen = match &args.command {
        None => &command,
        Some(name) => command.find_subcommand(name).ok_or_else(|| {
            format!("lull has no command '{name}', so it has no page; `lull --help` lists the commands")
        })?,
    };
    out!("{}", String::from_utf8_lossy(&rendered(chosen)))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns every page with its file's name: that of `lull`, those of its commands, and those of their subcommands.
fn pages(command: &Command) -> Vec<(String, Vec<u8>)> {
    let name = command.get_display_name().unwrap_or(command.get_name());
    let own = (format!("{name}.1"), rendered(command));
    let below = command.get_subcommands().filter(|it| !it.is_hide_set() && it.get_name() != "help");
    std::iter::once(own).chain(below.flat_map(pages)).collect()
}

fn rendered(command: &Command) -> Vec<u8> {
    let mut page = Vec::new();
    Man::new(command.clone()).render(&mut page).expect("a vector takes everything");
    page
}

fn write_page(path: &Path, page: &[u8]) -> Result<(), Failure> {
    let written = fs::write(path, page);
    written.map_err(|error: io::Error| {
        format!("cannot write {}: {error}; name a directory that you may write to", path.display()).into()
    })
}

/// Prints a completion script of the command line.
pub fn completions(args: &CompletionsArgs, mut command: Command) -> Result<ExitCode, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "lull", &mut script);
    out!("{}", String::from_utf8_lossy(&script))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn every_command_is_listed_once_and_every_listed_one_exists() {
        let command = Cli::command();
        let mut there_are: Vec<&str> =
            command.get_subcommands().filter(|it| !it.is_hide_set()).map(Command::get_name).collect();
        there_are.push("help");
        let mut listed: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        there_are.sort_unstable();
        listed.sort_unstable();
        assert_eq!(listed, there_are);
    }

    #[test]
    fn the_flags_are_sound_and_each_page_has_a_name_and_options() {
        by_plane(Cli::command()).debug_assert();
        let mut command = Cli::command();
        command.build();
        let pages = pages(&command);
        for name in ["lull.1", "lull-compare.1", "lull-sim.1", "lull-sim-replay.1"] {
            let page = &pages.iter().find(|(page, _)| page == name).unwrap_or_else(|| panic!("no {name}")).1;
            let page = String::from_utf8_lossy(page);
            assert!(page.contains(".SH NAME") && page.contains(".SH OPTIONS"), "{name}: {page}");
        }
    }

    #[test]
    fn pages_are_written_into_a_directory_that_is_made_for_them() {
        let directory = std::env::temp_dir().join(format!("lull-man-{}", std::process::id())).join("man1");
        man(&ManArgs { command: None, out: Some(directory.clone()) }, Cli::command()).unwrap();
        assert!(directory.join("lull-compare.1").is_file());
        let file = directory.join("lull.1");
        let said = man(&ManArgs { command: None, out: Some(file.clone()) }, Cli::command()).unwrap_err().to_string();
        assert!(said.contains(file.to_str().unwrap()) && said.contains("name a directory"), "{said}");
        fs::remove_dir_all(directory.parent().unwrap()).unwrap();
    }

    #[test]
    fn lines_are_wrapped_between_words() {
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("unbreakable", 3), ["unbreakable"]);
    }
}
