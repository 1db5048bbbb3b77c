//! `lull top`: a screen that is drawn anew each interval.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use lull_figures::device::Watched;
use lull_figures::process::{Asked, Which};
use lull_figures::rates::{Rate, between};
use lull_figures::{Figures, Source};
use lull_lab::table::wrap;
use lull_linux::netdev::Netdev;
use lull_linux::show::show;
use lull_linux::{Options, Session};
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::widgets::{Paragraph, Row, Table};

use crate::device_args::StateArgs;
use crate::failure::Failure;
use crate::target::Target;
use crate::units;

/// How often it looks for a key.
const KEY_EVERY: Duration = Duration::from_millis(50);

/// Arguments of `lull top`.
#[derive(Args)]
pub struct TopArgs {
    /// The devices, and the processes that run lull's user plane; by default all such processes and all devices that a
    /// mode was applied to. dev:1234 is a device whose name is a number.
    #[arg(value_name = "DEV|PID")]
    targets: Vec<Target>,
    /// Length of an interval, such as 1s or 200ms.
    #[arg(long, value_parser = units::interval, default_value = "1s", value_name = "TIME")]
    interval: Duration,
    #[command(flatten)]
    state: StateArgs,
}

/// Draws until it is told to end.
pub fn run(args: &TopArgs, stop: &AtomicBool) -> Result<ExitCode, Failure> {
    if !std::io::stdout().is_terminal() {
        return Err("cannot draw: standard output is no terminal; `lull stat` prints an interval a line".into());
    }
    let mut sources = sources(&args.targets, &args.state.options())?;
    let mut before = read(&mut sources)?;
    let mut terminal = ratatui::try_init()?;
    let done = screen(&mut terminal, args.interval, stop, &mut before, &mut sources);
    ratatui::restore();
    done.map(|()| ExitCode::SUCCESS)
}

/// A source that is read in each interval.
struct Read {
    source: Box<dyn Source>,
    /// Whether it was asked for by name, so that its end is a failure.
    is_named: bool,
}

/// Returns the sources that were asked for. A device that was not named, and is deleted meanwhile, is left out.
fn sources(targets: &[Target], options: &Options) -> Result<Vec<Read>, Failure> {
    let mut sources: Vec<Read> = Vec::new();
    for target in targets {
        let source: Box<dyn Source> = match target {
            Target::Device(device) => Box::new(Watched::open(device, options)?),
            Target::Process(pid) => Box::new(Asked(Which::Process(*pid))),
        };
        sources.push(Read { source, is_named: true });
    }
    if targets.is_empty() {
        let found = |source: Box<dyn Source>| Read { source, is_named: false };
        sources.push(found(Box::new(Asked(Which::All))));
        for link in Netdev::new().links()? {
            let shown = Session::open(&link.name, options).and_then(|mut session| show(&mut session));
            let is_applied = |shown: &lull_linux::show::Show| shown.napis.iter().any(|napi| napi.applied.is_some());
            if shown.is_ok_and(|shown| is_applied(&shown)) {
                match Watched::open(&link.name, options) {
                    Ok(device) => sources.push(found(Box::new(device))),
                    // If the device still exists, the error has another cause.
                    Err(error) if Session::open(&link.name, options).is_ok() => return Err(error.into()),
                    Err(_) => {}
                }
            }
        }
    }
    Ok(sources)
}

/// Reads all sources. One that was not named and has gone is left out from now on.
fn read(sources: &mut Vec<Read>) -> Result<Vec<Figures>, Failure> {
    let (mut all, mut failure) = (Vec::new(), None);
    sources.retain_mut(|it| match it.source.read() {
        Ok(figures) => {
            all.extend(figures);
            true
        }
        Err(error) => {
            if it.is_named {
                failure.get_or_insert(error);
            }
            false
        }
    });
    failure.map_or(Ok(all), |error| Err(error.into()))
}

fn screen(
    terminal: &mut ratatui::DefaultTerminal,
    interval: Duration,
    stop: &AtomicBool,
    before: &mut Vec<Figures>,
    sources: &mut Vec<Read>,
) -> Result<(), Failure> {
    let (mut rates, mut until) = (Vec::new(), Instant::now() + interval);
    while !stop.load(Ordering::Relaxed) {
        terminal.draw(|frame| draw(frame, interval, before, &rates))?;
        while let Some(left) = until.checked_duration_since(Instant::now())
            && !stop.load(Ordering::Relaxed)
        {
            if event::poll(left.min(KEY_EVERY))? {
                match event::read()? {
                    Event::Key(key) if key.kind == KeyEventKind::Press => match (key.code, key.modifiers) {
                        (KeyCode::Char('q') | KeyCode::Esc, _) | (KeyCode::Char('c'), KeyModifiers::CONTROL) => {
                            return Ok(());
                        }
                        _ => {}
                    },
                    Event::Resize(..) => {
                        terminal.draw(|frame| draw(frame, interval, before, &rates))?;
                    }
                    _ => {}
                }
            }
        }
        let after = read(sources)?;
        rates = between(before, &after);
        *before = after;
        until = Instant::now() + interval;
    }
    Ok(())
}

/// A column: its name, its least width, and whether it gets what is left over.
struct Column {
    name: &'static str,
    width: u16,
    grows: bool,
    /// If the screen is too narrow for all columns, this one gets what those of lower ranks leave.
    rank: u8,
}

const fn column(name: &'static str, width: u16, rank: u8) -> Column {
    Column { name, width, grows: false, rank }
}

/// All columns, from left to right. Cells are not cut off, because they would then say something else: `defer2` for
/// `defer20`.
const COLUMNS: [Column; 13] = [
    Column { name: "whose", width: 18, grows: true, rank: 0 },
    column("cpu %", 6, 5),
    column("queue", 12, 1),
    column("napi", 11, 12),
    column("mode", 14, 2),
    column("packets/s", 10, 4),
    column("polls/s", 9, 6),
    column("empty", 6, 9),
    column("batch", 6, 8),
    column("suspend/s", 9, 10),
    column("timers/s", 9, 11),
    column("p99", 8, 7),
    Column { name: "who polls", width: 20, grows: true, rank: 3 },
];

/// Returns the width of each column for these cells. "Who polls" may be a long list, which is cut off at its end.
fn widths(rows: &[[String; COLUMNS.len()]]) -> [u16; COLUMNS.len()] {
    std::array::from_fn(|at| {
        let longest = rows.iter().map(|cells| cells[at].chars().count()).max().unwrap_or(0);
        let longest = if at == COLUMNS.len() - 1 { 0 } else { u16::try_from(longest).unwrap_or(u16::MAX) };
        COLUMNS[at].width.max(longest)
    })
}

/// Returns the columns that fit on a screen of this width, with a space between each two.
fn fitting(width: u16, widths: &[u16; COLUMNS.len()]) -> Vec<usize> {
    let mut by_rank: Vec<usize> = (0..COLUMNS.len()).collect();
    by_rank.sort_by_key(|&at| COLUMNS[at].rank);
    let (mut fit, mut taken) = (Vec::new(), 0_u16);
    for at in by_rank {
        let with = taken.saturating_add(widths[at]).saturating_add(u16::from(!fit.is_empty()));
        if with <= width || fit.is_empty() {
            fit.push(at);
            taken = with;
        }
    }
    fit.sort_unstable();
    fit
}

fn draw(frame: &mut Frame<'_>, interval: Duration, figures: &[Figures], rates: &[Rate]) {
    let width = usize::from(frame.area().width);
    let below = |figures: &Figures| -> String {
        let controller = figures.controller.iter().map(|decided| format!("controller: {}", decided.words()));
        let sentences = controller.chain(figures.missing.iter().cloned());
        let wrapped = |sentence: String| wrap(&format!("{}: {sentence}", figures.subject.name), width, "  ");
        sentences.map(wrapped).collect()
    };
    let foot: String = figures.iter().map(below).collect();
    let table: Vec<[String; COLUMNS.len()]> = rates.iter().map(cells).collect();
    let widths = widths(&table);
    let fit = fitting(frame.area().width, &widths);
    let left_out: Vec<&str> = (0..COLUMNS.len()).filter(|at| !fit.contains(at)).map(|at| COLUMNS[at].name).collect();
    let narrow = match left_out[..] {
        [] => String::new(),
        _ => format!(" Too narrow for {}: widen the terminal.", left_out.join(", ")),
    };
    let what = match (figures.is_empty(), rates.is_empty()) {
        (true, _) => {
            "no process runs lull's user plane, and no mode is applied to a device; `lull top DEV` watches one"
        }
        (false, true) => "counting",
        (false, false) => "",
    };
    let top = wrap(&format!("lull top, every {:.1} s; q ends it.{narrow} {what}", interval.as_secs_f64()), width, "  ");
    let lines = |text: &str| Constraint::Length(u16::try_from(text.lines().count()).unwrap_or(u16::MAX));
    let rows = Layout::vertical([lines(&top), Constraint::Fill(1), lines(&foot)]);
    let [head, body, below] = rows.areas(frame.area());
    frame.render_widget(Paragraph::new(top), head);
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let constraint = |at: usize| match COLUMNS[at].grows {
        true => Constraint::Min(widths[at]),
        false => Constraint::Length(widths[at]),
    };
    let chosen = |cells: [String; COLUMNS.len()]| Row::new(fit.iter().map(|&at| cells[at].clone()).collect::<Vec<_>>());
    let table = Table::new(table.into_iter().map(chosen), fit.iter().map(|&at| constraint(at)))
        .header(chosen(COLUMNS.map(|column| column.name.to_owned())).style(bold));
    frame.render_widget(table, body);
    frame.render_widget(Paragraph::new(foot), below);
}

/// The cells of a row. What is not known is shown as a dash, and never as zero.
fn cells(rate: &Rate) -> [String; COLUMNS.len()] {
    let number = |value: Option<f64>, digits: usize| value.map_or("-".to_owned(), |value| format!("{value:.digits$}"));
    let whose = match rate.subject.pid {
        Some(pid) => format!("{} ({pid})", rate.subject.name),
        None => rate.subject.name.clone(),
    };
    let by = rate.by.iter().map(|(who, percent)| format!("{} {percent:.0} %", who.name()));
    [
        whose,
        number(rate.cpu_percent, 1),
        format!("{}:{}", rate.napi.device, rate.napi.queue),
        rate.napi.id.to_string(),
        rate.napi.mode.clone(),
        number(rate.packets, 0),
        number(rate.polls, 0),
        number(rate.empty_percent, 1),
        number(rate.batch, 2),
        number(rate.suspensions, 0),
        number(rate.deferrals, 0),
        rate.latency.map_or("-".to_owned(), |latency| lull_units::time_text(latency.p99_ns / 1_000 * 1_000)),
        by.collect::<Vec<_>>().join(", "),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_figures::{Napi, Poller, Subject};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn drawn(figures: &[Figures], rates: &[Rate]) -> String {
        drawn_on(150, figures, rates)
    }

    fn drawn_on(columns: u16, figures: &[Figures], rates: &[Rate]) -> String {
        let mut terminal = Terminal::new(TestBackend::new(columns, 8)).unwrap();
        terminal.draw(|frame| draw(frame, Duration::from_secs(1), figures, rates)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn a_napi_has_its_row_and_what_is_not_known_is_a_dash() {
        let napi = |packets, polls| Napi {
            device: "tap0".to_owned(),
            queue: "1".to_owned(),
            id: 1_073_741_824,
            mode: "suspend20".to_owned(),
            counted: true,
            polls: vec![(Poller::BusyPoll, polls)],
            packets,
            ..Napi::default()
        };
        let figures = |now_ns, napi| Figures {
            subject: Subject { name: "memcached".to_owned(), pid: Some(77) },
            now_ns,
            napis: vec![napi],
            missing: vec!["something is not known".to_owned()],
            ..Figures::default()
        };
        let (before, after) = ([figures(0, napi(0, 0))], [figures(1_000_000_000, napi(1_000, 400))]);
        let screen = drawn(&after, &between(&before, &after));
        let row = screen.lines().find(|line| line.contains("memcached (77)")).unwrap_or_else(|| panic!("{screen}"));
        let cells: Vec<&str> = row.trim_matches('"').split_whitespace().collect();
        let expected = "memcached (77) - tap0:1 1073741824 suspend20 1000 400 0.0 2.50 - 0 - busy-poll 100 %";
        assert_eq!(cells.join(" "), expected, "{screen}");
        assert!(screen.contains("memcached: something is not known"), "{screen}");
        assert!(!screen.contains("Too narrow"), "{screen}");
        // An ordinary terminal shows the main columns whole, and names those that it has no room for.
        let screen = drawn_on(80, &after, &between(&before, &after));
        let row = screen.lines().find(|line| line.contains("memcached (77)")).unwrap_or_else(|| panic!("{screen}"));
        let cells: Vec<&str> = row.trim_matches('"').split_whitespace().collect();
        assert_eq!(cells.join(" "), "memcached (77) tap0:1 suspend20 1000 busy-poll 100 %", "{screen}");
        let said: Vec<&str> = screen.lines().flat_map(|line| line.trim_matches('"').split_whitespace()).collect();
        assert!(said.join(" ").contains("Too narrow for cpu %, napi, polls/s,"), "{screen}");
        for columns in [1, 20] {
            drawn_on(columns, &after, &between(&before, &after));
        }
    }

    #[test]
    fn long_names_of_processes_and_interfaces_are_not_cut_off() {
        let figures = |now_ns| Figures {
            subject: Subject { name: "memcached-large".to_owned(), pid: Some(4_194_303) },
            now_ns,
            napis: vec![Napi {
                device: "enp129s0f1np1v7".to_owned(),
                queue: "127".to_owned(),
                mode: "threaded-busy".to_owned(),
                counted: true,
                id: 1_073_741_824,
                polls: vec![(Poller::BusyPoll, now_ns / 1_000_000)],
                packets: now_ns / 1_000_000,
                ..Napi::default()
            }],
            ..Figures::default()
        };
        let (before, after) = ([figures(0)], [figures(1_000_000_000)]);
        for columns in [80, 100, 150] {
            let screen = drawn_on(columns, &after, &between(&before, &after));
            for whole in ["memcached-large (4194303)", "enp129s0f1np1v7:127", "threaded-busy"] {
                assert!(screen.contains(whole), "{columns}: {screen}");
            }
        }
    }

    /// A device that exists at first.
    struct Going(bool);

    impl Source for Going {
        fn read(&mut self) -> Result<Vec<Figures>, lull_figures::Error> {
            if std::mem::take(&mut self.0) {
                return Ok(vec![Figures::default()]);
            }
            Err(lull_figures::Error::Watching { device: "tap0".to_owned(), why: "it has gone".to_owned() })
        }
    }

    #[test]
    fn a_device_that_was_not_named_may_go() {
        let sources = |is_named| vec![Read { source: Box::new(Going(true)), is_named }];
        let mut found = sources(false);
        assert_eq!(read(&mut found).unwrap().len(), 1);
        assert_eq!((read(&mut found).unwrap().len(), found.len()), (0, 0));
        let mut named = sources(true);
        assert_eq!(read(&mut named).unwrap().len(), 1);
        assert!(read(&mut named).unwrap_err().to_string().contains("it has gone"));
    }

    #[test]
    fn an_empty_screen_says_what_to_do() {
        assert!(drawn(&[], &[]).contains("`lull top DEV` watches one"));
        assert!(drawn_on(80, &[], &[]).contains("`lull top"), "{}", drawn_on(80, &[], &[]));
    }
}
