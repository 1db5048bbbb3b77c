//! Lists of CPUs, cores and queues, as the kernel writes them.

/// The largest number of a list. Linux has at most 8,192 CPUs; a bound keeps a typing error from filling the memory.
pub const NUMBER_MAX: usize = u16::MAX as usize;

/// Reads numbers and ranges: `0,2-3`. Blanks around a number are ignored.
///
/// # Errors
/// The list or an element is empty, a range goes down, or a number is above [`NUMBER_MAX`].
pub fn numbers(text: &str) -> Result<Vec<usize>, String> {
    list(text).ok_or_else(|| format!("'{text}' is not a list of numbers such as 0,2-3"))
}

fn list(text: &str) -> Option<Vec<usize>> {
    let mut numbers = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if first > last || last > NUMBER_MAX {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

/// Writes a list as [`numbers`] reads it, in its order and as short as possible: `0-3,8`.
pub fn numbers_text(numbers: &[usize]) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for &number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    let range =
        |(first, last): (usize, usize)| if first == last { first.to_string() } else { format!("{first}-{last}") };
    ranges.into_iter().map(range).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_written_alike() {
        assert_eq!(numbers("0,2-3"), Ok(vec![0, 2, 3]));
        assert_eq!(numbers(" 0 - 2 ,5\n"), Ok(vec![0, 1, 2, 5]), "as /sys ends a line");
        for text in ["0", "0-3,8", "5,3", "1-2,4-5"] {
            assert_eq!(numbers_text(&numbers(text).unwrap()), text);
        }
        assert_eq!(numbers_text(&[]), "");
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for bad in ["", "a", "3-1", "0,", ",", "99999", "-1", "1--2", "0-99999999999999"] {
            assert_eq!(numbers(bad), Err(format!("'{bad}' is not a list of numbers such as 0,2-3")));
        }
        assert!(numbers(&NUMBER_MAX.to_string()).is_ok());
    }
}
