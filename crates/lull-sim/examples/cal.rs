use lull_sim::published::*; use lull_sim::params::Params;
fn main() {
    let file = std::env::args().nth(1); let cases = std::env::args().nth(2).unwrap_or("base,defer200,fullbusy,suspend200".into());
    let text = file.map(|f| std::fs::read_to_string(f).unwrap()).unwrap_or(PARAMS_TOML.into());
    let params = Params::parse(&text, &KNOWN).unwrap();
    let modes: Vec<lull_core::Mode> = cases.split(',').map(|c| c.parse().unwrap()).collect();
    let loads: Vec<&str> = LOADS.iter().map(|l| l.0).collect();
    let t = std::time::Instant::now();
    let sim = simulate(&params, &modes, &loads, Budget { open_ms: 400, busy_ms: 250, ..Budget::full() }, 1).unwrap();
    let v6 = Table::parse(V6_CSV).unwrap();
    println!("{}", summary::table_text(&sim.table, &v6));
    let letter = std::fs::read_to_string("crates/lull-sim/data/irq_suspension_v6.csv").unwrap();
    for (c, ns) in sim.table.cells.iter().zip(&sim.busy_ns_per_query) {
        let cyc: f64 = letter.lines().find(|l| l.starts_with(&format!("{},{},", c.case, c.load))).map(|l| l.split(',').nth(7).unwrap().parse().unwrap()).unwrap_or(0.0);
        let p = v6.cell(&c.case, &c.load).unwrap();
        println!("{:10} {:5} busy ns/q {:.0} publ {:.0} ({:+.0}%)  usr {:.1}/{:.1} sys {:.1}/{:.1} soft {:.1}/{:.1} ev {:.1}/{:.1} empt {:.2}M/{:.2}M", c.case, c.load, ns, cyc*3.0/3.3, 100.0*(ns/(cyc*3.0/3.3)-1.0), c.get(Column::Usr), p.get(Column::Usr), c.get(Column::Sys), p.get(Column::Sys), c.get(Column::Softirq), p.get(Column::Softirq), c.get(Column::EpollEvents), p.get(Column::EpollEvents), c.get(Column::EmptyPolls)/1e6, p.get(Column::EmptyPolls)/1e6);
    }
    let j = summary::judge(&sim.table, &v6);
    println!("{}\n{}", summary::columns_text(&sim.table, &v6), summary::goals_text(&j));
    println!("{:.1}s {:.1} Mev/s {:.1} Mtr/s", t.elapsed().as_secs_f64(), sim.events as f64/1e6/t.elapsed().as_secs_f64(), sim.transitions as f64/1e6/t.elapsed().as_secs_f64());
}
