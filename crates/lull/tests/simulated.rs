//! `lull predict` and `lull tune` as commands: the table, the files, the commands that are printed, and errors in one
//! line.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use lull_lab::{csv, json};

const SMALL: &str = r#"[machine]
cores = 1
[nic]
speed = "10Gbit/s"
rx_usecs = "50us"
[network]
latency = "20us"
[service]
kind = "epoll"
connections = 100
request_cost = "6us"
[costs]
profile = "round"
[run]
warmup = "10ms"
"#;

struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Directory {
        let path = std::env::temp_dir().join(format!("lull-simulated-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Directory(path)
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn lull(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lull")).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[track_caller]
fn refused(arguments: &[&str], says: &[&str]) {
    let output = lull(arguments);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert_eq!(said.trim_end().lines().count(), 1, "{said}");
    for word in says {
        assert!(said.contains(word), "{said}");
    }
    assert!(output.stdout.is_empty());
}

#[test]
fn a_prediction_is_the_labs_table_and_the_same_on_any_number_of_threads() {
    let directory = Directory::new("predict");
    let world = directory.write("small.toml", SMALL);
    let run = |threads: &str, seed: &str| {
        let files = [directory.path("t.csv"), directory.path("t.json"), directory.path("t.html")];
        let arguments =
            ["predict", &world, "--modes", "base,suspend20,fullbusy", "--loads", "30K,50%,MAX", "--seconds"];
        let more = ["0.05", "--runs", "2", "--threads", threads, "--seed", seed];
        let to = ["--csv", &files[0], "--json", &files[1], "--html", &files[2]];
        let output = lull(&[&arguments[..], &more, &to].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        (text(&output.stdout), files.map(|file| std::fs::read_to_string(file).unwrap()))
    };
    let (table, files) = run("1", "1");
    assert!(table.starts_with("SIMULATED small: 1 core at 3.0 GHz") && table.contains("profile 'round'"), "{table}");
    assert!(table.contains("All figures are simulated, not measured"), "{table}");
    let (again, files_again) = run("2", "1");
    assert_eq!((&table, &files[0]), (&again, &files_again[0]));
    assert_ne!(run("1", "2").1[0], files[0]);

    let rows = csv::parse(&files[0]).unwrap();
    assert_eq!(rows.len(), 9);
    assert!(rows.iter().all(|row| row.verdict == "in force" && row.instructions_per_query.is_none()), "{}", files[0]);
    let p99 = |mode: &str| rows.iter().find(|row| row.testcase == mode).unwrap().p99_latency_us.unwrap();
    assert!(p99("fullbusy") < p99("suspend20") && p99("suspend20") < p99("base"));
    let report = json::parse(&files[1]).unwrap();
    assert_eq!((report.nic.as_str(), report.runs), ("simulated", 2));
    assert!(report.base_qps_max.unwrap() > 50_000.0);
    assert!(files[2].contains("<svg") && files[2].contains("SIMULATED small"));
}

#[test]
fn a_table_that_is_piped_is_no_wider_than_a_page() {
    let directory = Directory::new("piped");
    let world = directory.write("world.toml", SMALL);
    let output = lull(&["predict", &world, "--modes", "base,suspend20", "--loads", "MAX", "--seconds", "0.01"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    let widest = table.lines().map(|line| line.chars().count()).max();
    assert!(widest <= Some(160), "{widest:?}:\n{table}");
    assert!(table.contains("--csv"), "what is left out is said:\n{table}");
}

#[test]
fn a_cell_that_hits_a_bound_is_left_out_and_the_bound_is_named() {
    let directory = Directory::new("bound");
    let world = directory.write("small.toml", &SMALL.replace("[run]", "[run]\nbacklog_max = 2000"));
    let output = lull(&["predict", &world, "--modes", "base", "--loads", "20K,1M", "--seconds", "0.05"]);
    let said = text(&output.stdout);
    assert!(output.status.success() && said.contains("not run"), "{said}");
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains("base at 1000K was not run: the world had its bound of 2000 requests waiting"), "{said}");
    refused(
        &["predict", &world, "--modes", "base", "--loads", "1M"],
        &["base at 1000K: the world had its bound", "backlog_max"],
    );
}

#[test]
fn an_answer_has_the_line_to_type_and_a_page() {
    let directory = Directory::new("tune");
    let world = directory.write("small.toml", SMALL);
    let page = directory.path("page.html");
    let arguments = ["tune", &world, "--slo", "p99<75us", "--load", "50K", "--dev", "eth7", "--html", &page];
    let output = lull(&arguments);
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said}{}", text(&output.stderr));
    let typed = said.lines().find(|line| line.contains("lull apply eth7 --mode ")).unwrap_or_else(|| panic!("{said}"));
    let mode = typed.trim().trim_start_matches("lull apply eth7 --mode ").split_whitespace().next().unwrap();
    mode.parse::<lull_core::Mode>().unwrap();
    for part in [
        "SIMULATED small",
        "Against base: ",
        "each of 5 seeds",
        "Frontier of p99 against CPU",
        "0.5 times the load",
        "have other values of irq_suspend_timeout or defer_hard_irqs",
    ] {
        assert!(said.contains(part), "no '{part}' in: {said}");
    }
    let page = std::fs::read_to_string(page).unwrap();
    for part in ["<svg", "class=\"ring\"", "class=\"frontier\"", "lull apply eth7", "All settings tried"] {
        assert!(page.contains(part), "{part}");
    }
    // The page is self-contained: nothing is loaded from elsewhere.
    assert!(!page.contains("http") && !page.contains("src="), "the page refers to something else");

    // lull's own stack takes no settings of a device.
    let own = SMALL.replace("cores = 1", "cores = 1\nplane = \"user\"");
    let own = directory.write("own.toml", &own);
    let own_page = directory.path("own.html");
    let output = lull(&["tune", &own, "--slo", "p99<75us", "--load", "50K", "--html", &own_page]);
    let said = text(&output.stdout) + &std::fs::read_to_string(own_page).unwrap();
    assert!(said.matches("lull run --nic NIC --addr IP/PREFIX --mode ").count() == 2, "{said}");
    for part in ["lull apply", "lull attach", "needs Linux"] {
        assert!(!said.contains(part), "{part}: {said}");
    }

    let output = lull(&["tune", &world, "--slo", "p99<21us", "--load", "50K"]);
    let (said, error) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(2));
    assert!(!said.contains("lull apply") && said.contains("Frontier"), "{said}");
    assert!(
        error.contains("no setting meets p99<21us at 50K requests per second: ") && error.contains("nearest"),
        "{error}"
    );
    assert_eq!(error.trim_end().lines().count(), 1, "{error}");

    // If there are so few requests that none comes in the time of a run, nothing is known about what the service
    // carries.
    let output = lull(&["tune", &world, "--slo", "p99<2ms", "--load", "1", "--seconds", "0.001"]);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        error.contains("has no answer") && error.contains("--seconds") && !error.contains("none carries"),
        "{error}"
    );
}

#[test]
fn the_examples_that_ship_are_listed_printed_and_predicted() {
    let listed = lull(&["sim", "example"]);
    let names: Vec<String> =
        text(&listed.stdout).lines().map(|line| line.split(' ').next().unwrap().to_owned()).collect();
    assert_eq!(names, ["af_xdp", "group", "memcached", "proxy", "transmit"]);
    let directory = Directory::new("examples");
    let printed = lull(&["sim", "example", "af_xdp"]);
    let world = directory.write("mine.toml", &text(&printed.stdout));
    let arguments = ["predict", &world, "--modes", "base,suspend20,threaded-busy", "--loads", "100K"];
    let output = lull(&[&arguments[..], &["--runs", "1", "--seconds", "0.02"]].concat());
    let said = text(&output.stdout);
    assert!(output.status.success() && said.contains("AF_XDP responder waiting in epoll"), "{said}");
    assert!(!said.contains("not in force"), "{said}");
    let spins = directory.write("spins.toml", &text(&printed.stdout).replace("wait = \"epoll\"", "wait = \"spin\""));
    refused(&["predict", &spins, "--modes", "base,suspend20"], &["suspend20 acts in epoll_wait", "busyread"]);
    // If lull run cannot reach a program, the output says so and prints no command. There is one thread, because
    // spinning takes many events.
    let small = text(&printed.stdout).replace("wait = \"epoll\"", "wait = \"spin\"").replace("cores = 8", "cores = 2");
    let small = small.replace("queues = 4", "queues = 1").replace("workers = 4", "workers = 1").replace("20ms", "2ms");
    let spins = directory.write("spins.toml", &small);
    let arguments = ["tune", &spins, "--slo", "p99<40us", "--load", "25K", "--seconds", "0.02", "--seeds", "3"];
    let said = text(&lull(&arguments).stdout);
    assert!(said.contains("lull apply DEV --mode busyread") && said.contains("SO_PREFER_BUSY_POLL 1"), "{said}");
    assert!(!said.contains("lull run") && said.contains("Left out (and "), "{said}");
    // The reason why a mode is left out has quotation marks in it.
    let [csv, ..] = files(&directory, &arguments);
    let spins = csv.lines().find(|line| line.starts_with("suspend20,")).unwrap();
    assert!(spins.contains(",\"") && spins.ends_with('"') && spins.contains("(wait = \"\"spin\"\")"), "{spins}");
    refused(&["sim", "example", "redis"], &["'redis'", "af_xdp, group, memcached, proxy"]);
}

/// Writes `--csv`, `--json` and `--html`, and checks that they contain the same.
fn files(directory: &Directory, arguments: &[&str]) -> [String; 3] {
    let paths = ["out.csv", "out.json", "out.html"].map(|name| directory.0.join(name).to_str().unwrap().to_owned());
    let options = ["--csv", &paths[0], "--json", &paths[1], "--html", &paths[2]];
    let output = lull(&[arguments, &options[..]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    paths.map(|path| std::fs::read_to_string(path).unwrap())
}

#[test]
fn every_command_that_finds_something_writes_it_in_three_forms() {
    let directory = Directory::new("forms");
    let [csv, json, html] = files(&directory, &["sim", "published", "--table", "tcp_rr"]);
    let found: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((csv.lines().count(), found.as_array().unwrap().len()), (1 + 4, 4));
    for row in found.as_array().unwrap() {
        let name = row["row"].as_str().unwrap();
        assert!(csv.contains(name) && html.contains(name), "{name}");
    }

    let world = directory.write("small.toml", SMALL);
    let asked = ["tune", &world, "--slo", "p99<2ms", "--load", "10K", "--seconds", "0.02", "--seeds", "3"];
    let [csv, json, html] = files(&directory, &asked);
    let found: serde_json::Value = serde_json::from_str(&json).unwrap();
    let tried = found["tried"].as_array().unwrap();
    assert_eq!(csv.lines().count(), 1 + tried.len());
    let recommended = found["recommended"]["setting"].as_str().unwrap();
    assert!(csv.contains(recommended) && html.contains(recommended), "{recommended}");
    assert_eq!(found["recommended"]["runs"].as_array().unwrap().len(), 3);
    refused(&["sim", "published", "--table", "all", "--csv", "x.csv"], &["--table irq"]);
    refused(&["sim", "groups", "--csv", "x.csv"], &["--case parking", "saturated, tx-trap or overload"]);
}

#[test]
fn bad_input_is_said_in_one_line() {
    let directory = Directory::new("bad");
    let world = directory.write("small.toml", SMALL);
    let bad = directory.write("bad.toml", &SMALL.replace("cores = 1", "cores = 0"));
    let place = format!("{bad}:2: machine.cores: 0 is impossible here: allowed is 1 to 256");
    refused(&["predict", &bad], &[&place]);
    refused(&["tune", &bad, "--slo", "p99<1ms", "--load", "1K"], &[&place]);
    refused(&["predict", "/nonexistent.toml"], &["/nonexistent.toml", "cannot read the world file"]);
    refused(&["predict", &world, "--modes", "suspendd"], &["'suspendd'", "suspendX"]);
    refused(&["predict", &world, "--modes", "base,busyread"], &["busyread", "epoll", "leave busyread out"]);
    refused(&["predict", &world, "--loads", "fast"], &["`fast`", "MAX"]);
    refused(&["predict", &world, "--loads", "50M"], &["50000K", "do not fit the wire"]);
    refused(&["predict", &world, "--seconds", "1e-10"], &["--seconds", "microsecond"]);
    refused(&["tune", &world, "--slo", "p99<2ms", "--load", "1K", "--seconds", "1e-10"], &["--seconds", "microsecond"]);
    refused(&["predict", &world, "--csv", "/no/such/place.csv"], &["/no/such"]);
    refused(&["tune", &world, "--slo", "p99<200", "--load", "10K"], &["'p99<200'", "no unit"]);
    refused(&["tune", &world, "--slo", "p99<2ms", "--load", "50%"], &["50%", "400K"]);
    refused(&["tune", &world, "--slo", "p99<2ms", "--load", "1K", "--cpu-max", "50"], &["--cpu-max", "no unit"]);
    refused(&["tune", &world, "--slo", "p99<2ms", "--load", "1K", "--cpu-max", "150%"], &["--cpu-max", "100%"]);
    assert!(Path::new(&world).exists());
}
