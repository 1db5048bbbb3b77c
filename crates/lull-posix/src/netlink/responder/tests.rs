//! What the kernel's family would answer, message by message.

use super::super::message::messages;
use super::*;
use lull_net::lull_core::NapiSettings;

const KERNELS: Family = Family { id: 33, is_kernels: true };
const OWN: Family = Family { id: OWN_FAMILY_ID, is_kernels: false };
const ASKER: Asker = Asker { port: 4711, cap_ack: false, ext_ack: true };
const IFINDEX: u32 = 7;

/// Two NAPIs on device 7.
struct Two {
    napis: Vec<Napi>,
    runs: bool,
    started: bool,
}

impl Two {
    fn new() -> Two {
        let napi = |queue: usize| Napi { queue, id: 9_000 + queue as u32, ..Napi::default() };
        Two { napis: vec![napi(0), napi(1)], runs: true, started: false }
    }
}

impl Plane for Two {
    fn ifindex(&self) -> u32 {
        IFINDEX
    }

    fn napis(&mut self, start: bool) -> Option<Vec<Napi>> {
        self.started |= start;
        (self.runs || start).then(|| self.napis.clone())
    }

    fn set(&mut self, id: u32, change: Change) -> Result<(), String> {
        let napi = self.napis.iter_mut().find(|napi| napi.id == id).unwrap();
        if change.defer_hard_irqs == Some(666) {
            return Err("not that one".to_owned());
        }
        napi.settings = change.of(napi.settings);
        Ok(())
    }
}

fn asked(kind: u16, flags: u16, command: u8, given: &[(u16, &[u8])]) -> Vec<u8> {
    let written = Writer::new(kind, NLM_F_REQUEST | flags, 5, 0).bytes(&[command, 1, 0, 0]);
    given.iter().fold(written, |written, (name, content)| written.attribute(*name, content)).end()
}

fn ask(plane: &mut Two, family: Family, request: &[u8]) -> Outcome {
    respond(&messages(request).unwrap()[0], family, ASKER, plane)
}

/// The attributes of each message of an answer, which are the asker's.
fn answers(outcome: &Outcome) -> Vec<Vec<(u16, u64)>> {
    let (Outcome::Answered(datagrams) | Outcome::AndKernels(datagrams)) = outcome else {
        panic!("it is answered: {outcome:?}")
    };
    let all = datagrams.concat();
    let of = |message: &Message<'_>| {
        assert_eq!((message.seq, u32::from_ne_bytes(message.whole[12..16].try_into().unwrap())), (5, ASKER.port));
        let given = attributes(&message.payload[4..]).unwrap();
        given.iter().map(|(name, content)| (*name, uint(content).unwrap_or_default())).collect()
    };
    let all = messages(&all).unwrap();
    all.iter().filter(|message| message.kind > NLMSG_DONE).map(of).collect()
}

/// The error of an answer that is a refusal, the words and the attribute that is missing.
fn error(outcome: &Outcome) -> (i32, String, Option<u64>) {
    let Outcome::Answered(datagrams) = outcome else { panic!("it is answered: {outcome:?}") };
    let message = messages(&datagrams[0]).unwrap()[0];
    assert!(matches!(message.kind, NLMSG_ERROR | NLMSG_DONE));
    let number = i32::from_ne_bytes(message.payload[..4].try_into().unwrap());
    if message.kind == NLMSG_DONE {
        return (number, String::new(), None);
    }
    let repeated = messages(&message.payload[4..]).map_or(message.payload.len() - 4, |all| all[0].whole.len());
    let length = u32::from_ne_bytes(message.payload[4..8].try_into().unwrap()) as usize;
    let given = attributes(&message.payload[4 + length.min(repeated)..]).unwrap();
    let words = given.iter().find(|(name, _)| *name == NLMSGERR_ATTR_MSG).map(|(_, words)| *words).unwrap_or_default();
    let missing = given.iter().find(|(name, _)| *name == NLMSGERR_ATTR_MISS_TYPE).and_then(|(_, name)| uint(name));
    (number, String::from_utf8_lossy(words).trim_end_matches('\0').to_owned(), missing)
}

fn ends(outcome: &Outcome) -> bool {
    let Outcome::Answered(datagrams) = outcome else { return false };
    messages(datagrams.last().unwrap()).unwrap().last().unwrap().kind == NLMSG_DONE
}

#[test]
fn a_dump_of_the_device_has_every_napi_with_its_settings_the_newest_first() {
    let mut plane = Two::new();
    plane.napis[1].settings = NapiSettings {
        defer_hard_irqs: 9,
        gro_flush_timeout_ns: 5_000_000_000,
        threaded: Threaded::On,
        ..Default::default()
    };
    plane.napis[1].thread = Some(1234);
    let request = asked(33, NLM_F_DUMP, CMD_NAPI_GET, &[(napi::IFINDEX, &IFINDEX.to_ne_bytes())]);
    let outcome = ask(&mut plane, KERNELS, &request);
    let expected = [
        vec![(2, 9_001), (1, 7), (8, 1), (4, 1234), (5, 9), (7, 0), (6, 5_000_000_000)],
        vec![(2, 9_000), (1, 7), (8, 0), (5, 0), (7, 0), (6, 0)],
    ];
    assert_eq!(answers(&outcome), expected);
    assert!(ends(&outcome) && plane.started);
}

#[test]
fn a_dump_of_everything_has_lulls_before_the_kernels_and_starts_nothing() {
    let mut plane = Two::new();
    let request = asked(33, NLM_F_DUMP, CMD_NAPI_GET, &[]);
    let outcome = ask(&mut plane, KERNELS, &request);
    assert!(matches!(&outcome, Outcome::AndKernels(_)) && answers(&outcome).len() == 2);
    assert!(!plane.started);
    plane.runs = false;
    assert_eq!(ask(&mut plane, KERNELS, &request), Outcome::Kernels);
}

#[test]
fn other_devices_other_napis_and_other_commands_are_the_kernels() {
    let mut plane = Two::new();
    let other = asked(33, NLM_F_DUMP, CMD_NAPI_GET, &[(napi::IFINDEX, &8_u32.to_ne_bytes())]);
    let id = 77_u32.to_ne_bytes();
    let unknown = asked(33, 0, CMD_NAPI_GET, &[(napi::ID, &id)]);
    let set = asked(33, 0, CMD_NAPI_SET, &[(napi::ID, &id), (napi::DEFER_HARD_IRQS, &id)]);
    let device = asked(33, 0, 1, &[(1, &IFINDEX.to_ne_bytes())]);
    let queues = asked(33, NLM_F_DUMP, CMD_QUEUE_GET, &[]);
    let controller = asked(GENL_ID_CTRL, 0, CTRL_CMD_GETFAMILY, &[(CTRL_ATTR_FAMILY_NAME, FAMILY_NAME)]);
    let family = asked(34, 0, CMD_NAPI_GET, &[(napi::ID, &9_000_u32.to_ne_bytes())]);
    for request in [other, unknown, set, device, queues, controller, family] {
        assert_eq!(ask(&mut plane, KERNELS, &request), Outcome::Kernels, "{request:?}");
    }
    assert!(!plane.started);
}

#[test]
fn a_napi_is_read_and_set_by_its_id_all_or_nothing() {
    let mut plane = Two::new();
    let id = 9_000_u32.to_ne_bytes();
    let get = asked(33, NLM_F_ACK, CMD_NAPI_GET, &[(napi::ID, &id)]);
    assert_eq!(answers(&ask(&mut plane, KERNELS, &get)).len(), 1);
    let set = asked(
        33,
        NLM_F_ACK,
        CMD_NAPI_SET,
        &[
            (napi::ID, &id),
            (napi::DEFER_HARD_IRQS, &100_u32.to_ne_bytes()),
            (napi::GRO_FLUSH_TIMEOUT, &20_000_u64.to_ne_bytes()),
            (napi::IRQ_SUSPEND_TIMEOUT, &20_000_000_u32.to_ne_bytes()),
            (napi::THREADED, &2_u32.to_ne_bytes()),
        ],
    );
    assert_eq!(error(&ask(&mut plane, KERNELS, &set)).0, 0);
    let wanted = NapiSettings {
        defer_hard_irqs: 100,
        gro_flush_timeout_ns: 20_000,
        irq_suspend_timeout_ns: 20_000_000,
        threaded: Threaded::BusyPoll,
        ..NapiSettings::default()
    };
    assert_eq!((plane.napis[0].settings, plane.napis[1].settings), (wanted, NapiSettings::default()));
    let above = (1_u32 << 31).to_ne_bytes();
    let refused = [
        (napi::DEFER_HARD_IRQS, &above[..], libc::ERANGE),
        (napi::THREADED, &[3, 0, 0, 0], libc::ERANGE),
        (napi::GRO_FLUSH_TIMEOUT, &[1, 0], libc::EINVAL),
        (40, &[1, 0, 0, 0], libc::EINVAL),
        (napi::DEFER_HARD_IRQS, &666_u32.to_ne_bytes(), libc::EINVAL),
    ];
    for (name, content, number) in refused {
        let timeout = (napi::GRO_FLUSH_TIMEOUT, &[1, 0, 0, 0][..]);
        let set = asked(33, 0, CMD_NAPI_SET, &[(napi::ID, &id), timeout, (name, content)]);
        let (error, words, _) = error(&ask(&mut plane, KERNELS, &set));
        assert!(error == -number && !words.is_empty(), "attribute {name}: {error} {words}");
    }
    assert_eq!(plane.napis[0].settings, wanted, "what is refused changes nothing");
}

#[test]
fn queues_name_the_napi_that_serves_them() {
    let mut plane = Two::new();
    let device = (queue::IFINDEX, &IFINDEX.to_ne_bytes()[..]);
    let outcome = ask(&mut plane, KERNELS, &asked(33, NLM_F_DUMP, CMD_QUEUE_GET, &[device]));
    let row = |id: u64, kind: u64| vec![(1, id), (3, kind), (2, 7), (4, 9_000 + id)];
    assert_eq!(answers(&outcome), [row(0, 0), row(1, 0), row(0, 1), row(1, 1)]);
    assert!(ends(&outcome));
    let one = [(queue::ID, &1_u32.to_ne_bytes()[..]), (queue::TYPE, &0_u32.to_ne_bytes()[..]), device];
    assert_eq!(answers(&ask(&mut plane, KERNELS, &asked(33, 0, CMD_QUEUE_GET, &one))), [row(1, 0)]);
    let missing = error(&ask(&mut plane, KERNELS, &asked(33, 0, CMD_QUEUE_GET, &one[1..])));
    assert_eq!((missing.0, missing.2), (-libc::EINVAL, Some(1)));
    let beyond = [(queue::ID, &9_u32.to_ne_bytes()[..]), one[1], device];
    assert_eq!(error(&ask(&mut plane, KERNELS, &asked(33, 0, CMD_QUEUE_GET, &beyond))).0, -libc::EINVAL);
}

#[test]
fn a_kernel_without_the_family_is_stood_in_for() {
    let mut plane = Two::new();
    let named = asked(GENL_ID_CTRL, 0, CTRL_CMD_GETFAMILY, &[(CTRL_ATTR_FAMILY_NAME, FAMILY_NAME)]);
    let family = answers(&ask(&mut plane, OWN, &named));
    assert!(family[0].contains(&(CTRL_ATTR_VERSION, 1)), "{family:?}");
    let other = asked(GENL_ID_CTRL, 0, CTRL_CMD_GETFAMILY, &[(CTRL_ATTR_FAMILY_NAME, b"ethtool\0")]);
    assert_eq!(ask(&mut plane, OWN, &other), Outcome::Kernels);
    let all = asked(GENL_ID_CTRL, NLM_F_DUMP, CTRL_CMD_GETFAMILY, &[]);
    assert!(matches!(ask(&mut plane, OWN, &all), Outcome::AndKernels(_)));
    let request = |command, flags, given: &[(u16, &[u8])]| asked(OWN_FAMILY_ID, flags, command, given);
    assert!(ends(&ask(&mut plane, OWN, &request(CMD_NAPI_GET, NLM_F_DUMP, &[]))));
    let unknown = ask(&mut plane, OWN, &request(CMD_NAPI_GET, 0, &[(napi::ID, &1_u32.to_ne_bytes())]));
    assert_eq!(error(&unknown).0, -libc::ENOENT);
    let other = ask(&mut plane, OWN, &request(CMD_NAPI_GET, NLM_F_DUMP, &[(1, &1_u32.to_ne_bytes())]));
    assert_eq!(error(&other).0, -libc::ENODEV);
    assert_eq!(error(&ask(&mut plane, OWN, &request(5, 0, &[]))).0, -libc::EOPNOTSUPP);
}

#[test]
fn errors_repeat_the_request_and_have_words_only_where_the_socket_asked_so() {
    let mut plane = Two::new();
    let set = asked(33, 0, CMD_NAPI_SET, &[(napi::ID, &9_000_u32.to_ne_bytes()), (napi::THREADED, &[9, 0, 0, 0])]);
    let length = |asker: Asker| match respond(&messages(&set).unwrap()[0], KERNELS, asker, &mut plane) {
        Outcome::Answered(datagrams) => datagrams[0].len(),
        other => panic!("{other:?}"),
    };
    let mut length = length;
    assert_eq!(length(Asker { port: 1, cap_ack: true, ext_ack: false }), 36);
    assert_eq!(length(Asker { port: 1, cap_ack: false, ext_ack: false }), 20 + set.len());
    assert!(length(ASKER) > 20 + set.len());
}
