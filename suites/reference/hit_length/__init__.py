"""Part `hits`: the length of a hit over any mix of groups, against brute force."""
