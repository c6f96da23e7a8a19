"""LGC beside exact values and values of few bits: is a learned code worth its time?"""
