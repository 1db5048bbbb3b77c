//! The environment of a program that is executed with a listener of lull's.
//!
//! Some servers empty it for the program that goes on in their place (nginx, as it is upgraded). Such a program is
//! given the library and the launcher's hand-over all the same, because without them the listeners that it inherits
//! would hear nothing.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char};
use std::os::unix::ffi::OsStringExt;
use std::ptr::null;
use std::sync::OnceLock;

use crate::handover::VARIABLE;

const PRELOAD: &str = "LD_PRELOAD";

/// The two variables as they were when the library was loaded.
static AT_LOAD: OnceLock<[CString; 2]> = OnceLock::new();

/// Remembers what the library was loaded by. The program may empty its own environment later.
pub(crate) fn remember() {
    let variable = |name: &str| {
        let value = std::env::var_os(name)?.into_vec();
        CString::new([name.as_bytes(), b"=", &value].concat()).ok()
    };
    if let (Some(preload), Some(hand_over)) = (variable(PRELOAD), variable(VARIABLE)) {
        // One hand-over is taken in a process.
        let _ = AT_LOAD.set([preload, hand_over]);
    }
}

/// An environment, with what was put into it.
pub(super) struct Made {
    pointers: Vec<*const c_char>,
    /// The value that was joined of both.
    _joined: Option<CString>,
}

impl Made {
    /// The environment `given` with the two variables; nothing if it has them.
    pub(super) fn of(given: *const *const c_char) -> Option<Made> {
        let [preload, hand_over] = AT_LOAD.get()?;
        let mut pointers = Vec::new();
        // SAFETY: the program vouches that a null is behind the last one, or that there are none.
        unsafe {
            let mut at = given;
            while !at.is_null() && !(*at).is_null() {
                pointers.push(*at);
                at = at.add(1);
            }
        }
        let position = |name: &str| {
            // SAFETY: the program vouches that each ends with a zero.
            let begins =
                |text: &*const c_char| unsafe { CStr::from_ptr(*text) }.to_bytes().starts_with(name.as_bytes());
            pointers.iter().position(begins)
        };
        if position(&format!("{VARIABLE}=")).is_some() {
            return None;
        }
        let joined = position(&format!("{PRELOAD}=")).and_then(|nth| {
            // SAFETY: as above.
            let theirs = unsafe { CStr::from_ptr(pointers.swap_remove(nth)) };
            let theirs = &theirs.to_bytes()[PRELOAD.len() + 1..];
            CString::new([preload.as_bytes(), b":", theirs].concat()).ok()
        });
        pointers.push(joined.as_ref().unwrap_or(preload).as_ptr());
        pointers.push(hand_over.as_ptr());
        pointers.push(null());
        Some(Made { pointers, _joined: joined })
    }

    pub(super) fn as_ptr(&self) -> *const *const c_char {
        self.pointers.as_ptr()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(environment: *const *const c_char) -> Vec<String> {
        let mut all = Vec::new();
        // SAFETY: these end with a null, and each of theirs with a zero.
        unsafe {
            for nth in 0.. {
                let text = *environment.add(nth);
                if text.is_null() {
                    break;
                }
                all.push(CStr::from_ptr(text).to_str().unwrap().to_owned());
            }
        }
        all
    }

    #[test]
    fn an_environment_without_the_library_is_given_it_and_keeps_what_it_has() {
        let own = AT_LOAD.get_or_init(|| [c"LD_PRELOAD=/ours.so".to_owned(), c"LULL_USER_PLANE=1020".to_owned()]);
        assert_eq!(own[1].to_bytes(), b"LULL_USER_PLANE=1020");
        let made = |given: &[&CStr]| {
            let given: Vec<_> = given.iter().map(|text| text.as_ptr()).chain([null()]).collect();
            Made::of(given.as_ptr()).map(|made| strings(made.as_ptr()))
        };
        let added = ["LD_PRELOAD=/ours.so", "LULL_USER_PLANE=1020"];
        assert_eq!(made(&[c"TZ=UTC"]).unwrap(), ["TZ=UTC", added[0], added[1]]);
        assert_eq!(made(&[]).unwrap(), added);
        assert_eq!(Made::of(null()).map(|made| strings(made.as_ptr())).unwrap(), added);
        let joined = made(&[c"LD_PRELOAD=/theirs.so", c"TZ=UTC"]).unwrap();
        assert_eq!(joined, ["TZ=UTC", "LD_PRELOAD=/ours.so:/theirs.so", added[1]]);
        assert_eq!(made(&[c"LULL_USER_PLANE=1020"]), None, "it goes its own way");
    }
}
