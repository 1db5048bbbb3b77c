//! Rules 1 and 2.

use super::{Bench, Kept, POLL_BUDGET, Rule, SLOTS_MIN};

pub(super) fn check(bench: &mut Bench<'_>) -> Kept {
    edges(bench)?;
    bench.clear()?;
    polls(bench)?;
    bench.clear()?;
    Ok(())
}

fn edges(bench: &mut Bench<'_>) -> Kept {
    let broken = |what: &str| Err((Rule::NoLostEdge, what.to_owned()));
    bench.arrive(1);
    if bench.work.raises() > 0 {
        return broken("the interrupt was raised before it was unmasked for the first time");
    }
    bench.work.line.unmask();
    if !bench.work.is_raised() {
        return broken("unmasking with a frame pending did not raise the interrupt");
    }
    if bench.work.is_fd() {
        bench.clear()?;
        bench.arrive(1);
        let raised = bench.work.is_raised();
        return if raised { Ok(()) } else { broken("the descriptor did not become readable for a frame") };
    }
    bench.arrive(1);
    if bench.work.raises() > 0 {
        return broken("a raise did not mask the interrupt: the next frame raised it again");
    }
    bench.work.line.unmask();
    if bench.work.raises() != 1 {
        return broken("unmasking with frames pending has to raise once, before it returns");
    }
    bench.clear()?;
    bench.work.line.unmask();
    if bench.work.raises() > 0 && bench.poll(POLL_BUDGET).0 == 0 {
        return broken("unmasking with an empty ring raised the interrupt");
    }
    bench.arrive(1);
    if !bench.work.is_raised() {
        return broken("a frame that arrived while the interrupt was unmasked did not raise it");
    }
    bench.clear()?;
    bench.work.line.unmask();
    bench.work.line.mask();
    bench.arrive(1);
    if bench.work.raises() > 0 {
        return broken("a frame raised the interrupt though it was masked");
    }
    Ok(())
}

fn polls(bench: &mut Bench<'_>) -> Kept {
    const FRAMES: usize = SLOTS_MIN;
    const FEW: usize = 2;
    let broken = |what: String| Err((Rule::ShortPolls, what));
    let sent = bench.arrive(FRAMES);
    let (none, few) = (bench.poll(0), bench.poll(FEW));
    if none.0 != 0 || !none.1.is_empty() {
        return broken("a poll with a budget of 0 took frames".to_owned());
    }
    if few.0 != FEW || few.1.len() > FEW {
        return broken(format!(
            "a poll of {FEW} with {FRAMES} frames waiting returned {}, with {} frames",
            few.0,
            few.1.len()
        ));
    }
    let mut got = few.1;
    let (count, frames) = bench.poll(POLL_BUDGET);
    got.extend(frames);
    let mut later = bench.poll(POLL_BUDGET).1;
    later.retain(|frame| sent.contains(frame));
    if count > POLL_BUDGET {
        return broken(format!("a poll of {POLL_BUDGET} returned {count}"));
    }
    if count < POLL_BUDGET && !later.is_empty() {
        return broken(format!(
            "a poll of {POLL_BUDGET} returned {count} and left {} frames that were there",
            later.len()
        ));
    }
    got.retain(|frame| sent.contains(frame));
    if got != sent {
        return broken(format!("{FRAMES} frames were sent and {} polled, or in another order", got.len()));
    }
    Ok(())
}
