//! A server that does no work, as the reference for measurements of servers that do:
//! `no_work tap:NAME|xdp:DEV ADDRESS END ANSWER`.
//!
//! It answers TCP on every port of ADDRESS, with the bytes of the file ANSWER for each END in a segment; `\r` and `\n`
//! in END mean what they mean in C. The kernel's end of a TAP has the first address of ADDRESS's network of 24 bits.
//! The server polls, and sleeps when nothing has come for a while.

use std::error::Error;
use std::net::Ipv4Addr;

use lull_nic::Device;
use lull_nic::xdp::{Xdp, XdpAddress, XdpConfig};
use rustix::event::{PollFd, PollFlags, poll};

#[path = "../benches/over_tap/no_work.rs"]
mod no_work;
#[path = "../benches/over_tap/mod.rs"]
#[allow(dead_code)] // The benches' clients are not needed here.
mod over_tap;

use no_work::{Answer, NoWork};

/// The number of empty polls before the server sleeps: they last about as long as slow clients need for an answer.
const EMPTY_POLLS_MAX: u32 = 2000;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [nic, ip, end, answer] = &arguments[..] else {
        println!("usage: no_work tap:NAME|xdp:DEV ADDRESS END ANSWER");
        return Ok(());
    };
    let ip: Ipv4Addr = ip.parse()?;
    let device: Box<dyn Device> = match nic.split_once(':') {
        Some(("tap", name)) => Box::new(over_tap::tap(name, ip, false)?),
        Some(("xdp", name)) => {
            let addresses = vec![XdpAddress::look_up(ip.into())?];
            Box::new(Xdp::open(&XdpConfig { name: name.to_owned(), addresses, ..XdpConfig::default() })?)
        }
        _ => return Err("the NIC is tap:NAME or xdp:DEV".into()),
    };
    let mut queue = device.take_queue(0)?;
    let end = end.replace("\\r", "\r").replace("\\n", "\n").into_bytes();
    let answer = Answer::Each { end, answer: std::fs::read(answer)? };
    let mut no_work = NoWork::new(device.info().mac, ip, answer);
    let mut empty = 0;
    loop {
        empty = if no_work.turn_around(&mut queue) == 0 { empty + 1 } else { 0 };
        if empty == EMPTY_POLLS_MAX {
            empty = 0;
            let fd = queue.irq.fd().ok_or("the NIC has no descriptor to sleep on")?;
            poll(&mut [PollFd::new(&fd, PollFlags::IN)], None)?;
        }
    }
}
